#include "comm/shm/matching.h"

#include <vector>

#include "comm/order/matching.h"

namespace trireme::detail {
namespace {

CallFacts facts_in(const Endpoint& endpoint, int peer, std::uint32_t sequence) {
  const Control& control = endpoint.control();
  Slot& slot = control.slot(peer, sequence);
  return {slot.kind,
          slot.reduce,
          slot.dtype,
          slot.root,
          slot.total,
          slot.input_numel,
          slot.output_numel,
          slot.has_counts != 0 ? control.counts(slot) : nullptr,
          slot.device};
}

// For messages: as the program counts them.
std::uint32_t number_of(const Endpoint& endpoint, std::uint32_t sequence) {
  return sequence - endpoint.first_count();
}

}  // namespace

std::string describe_slot(const Endpoint& endpoint, int peer, std::uint64_t number) {
  return number == 0 ? "nothing yet"
                     : describe_facts(static_cast<std::uint32_t>(number),
                                      facts_in(endpoint, peer, endpoint.sequence_of(number)));
}

void check_same_call(const Endpoint& endpoint, std::uint32_t sequence, int peer) {
  check_same_call(number_of(endpoint, sequence),
                  endpoint.size(),
                  endpoint.rank(),
                  facts_in(endpoint, endpoint.rank(), sequence),
                  peer,
                  facts_in(endpoint, peer, sequence),
                  [&](int rank) { return endpoint.name(rank); });
}

void check_splits(const Endpoint& endpoint, std::uint32_t sequence, const Operation& operation) {
  const OpKind kind = operation.kind;
  if (kind == OpKind::kAllGather || kind == OpKind::kBroadcast) {
    return;  // each rank knows all the lengths, and check_same_call has compared them
  }
  std::vector<CallFacts> all;
  all.reserve(static_cast<std::size_t>(endpoint.size()));
  for (int peer = 0; peer < endpoint.size(); ++peer) {
    all.push_back(facts_in(endpoint, peer, sequence));
  }
  const NameOf name = [&](int rank) { return endpoint.name(rank); };
  const std::uint32_t number = number_of(endpoint, sequence);
  if (kind == OpKind::kNeighbourAllGather) {
    check_neighbours(number, endpoint.rank(), operation.heard, all, name);
  }
  check_splits(number, all, name);
}

}  // namespace trireme::detail
