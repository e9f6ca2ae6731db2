#include "comm/shm/matching.h"

#include <vector>

#include "comm/matching.h"

namespace trireme::detail {
namespace {

CallFacts facts_in(const Station& station, int peer, std::uint32_t sequence) {
  const Control& control = station.control();
  Slot& slot = control.slot(peer, sequence);
  return {slot.kind,
          slot.reduce,
          slot.dtype,
          slot.root,
          slot.total,
          slot.input_numel,
          slot.output_numel,
          slot.has_counts != 0 ? control.counts(slot) : nullptr};
}

// For messages: as the program counts them.
std::uint32_t number_of(const Station& station, std::uint32_t sequence) {
  return sequence - station.first_count();
}

}  // namespace

std::uint32_t sequence_of(const Station& station, std::uint64_t number) {
  return station.first_count() + static_cast<std::uint32_t>(number);
}

std::string describe_slot(const Station& station, int peer, std::uint64_t number) {
  return number == 0 ? "nothing yet"
                     : describe_facts(static_cast<std::uint32_t>(number),
                                      facts_in(station, peer, sequence_of(station, number)));
}

void check_same_call(const Station& station, std::uint32_t sequence, int peer) {
  check_same_call(number_of(station, sequence),
                  station.size(),
                  station.rank(),
                  facts_in(station, station.rank(), sequence),
                  peer,
                  facts_in(station, peer, sequence),
                  [&](int rank) { return station.name(rank); });
}

void check_splits(const Station& station, std::uint32_t sequence) {
  const OpKind kind = station.control().slot(station.rank(), sequence).kind;
  if (kind == OpKind::kAllGather || kind == OpKind::kBroadcast) {
    return;  // each rank knows all the lengths, and check_same_call has compared them
  }
  std::vector<CallFacts> all;
  all.reserve(static_cast<std::size_t>(station.size()));
  for (int peer = 0; peer < station.size(); ++peer) {
    all.push_back(facts_in(station, peer, sequence));
  }
  check_splits(number_of(station, sequence), all, [&](int rank) { return station.name(rank); });
}

}  // namespace trireme::detail
