#include "comm/shm/named_collectives.h"

#include <numeric>
#include <vector>

#include "comm/shm/lane_transport.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

static_assert(static_cast<std::uint32_t>(Channel::Stream::kResult) < kLanes,
              "each stream of a collective has a lane");

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(index(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

NamedCollectives::NamedCollectives(const Endpoint& endpoint,
                                   Algorithm algorithm,
                                   Collectives& directly)
    : endpoint_(endpoint),
      algorithm_(algorithm),
      directly_(directly),
      channel_(std::make_shared<LaneTransport>(endpoint),
               all_ranks(endpoint.size()),
               /*number=*/0,
               std::vector<int>(index(endpoint.size()), 0)),
      collectives_(channel_, algorithm, endpoint.sum_group(), [&endpoint](int rank) {
        return endpoint.name(rank);
      }) {}

Steps NamedCollectives::start(const Call& call) {
  const Operation& op = call.operation;
  if (op.kind != OpKind::kAllocate && collectives_.is_special(op)) {
    // Also in the slot, for those who make another call, and for messages.
    directly_.publish_call(call);
    return collectives_.start(call);
  }
  const bool alone = endpoint_.self().completed.load(std::memory_order_relaxed) ==
                     endpoint_.sequence_of(call.number - 1);
  if (alone) {
    directly_.publish(call);
    return directly_.run(call);
  }
  return in_its_turn(call);
}

// Peers read what is published where it is. What one in front of it writes may be there only when
// that has ended on this rank, which those through lanes do sooner on one rank than on another.
Steps NamedCollectives::in_its_turn(const Call& call) {
  directly_.publish(call);
  Part part(directly_.run(call));
  co_await part;
}

void NamedCollectives::refuse(Device device) const {
  throw ConfigError(
      concat("the algorithm \"{}\" is for memory of the host, found memory of {}, "
             "for which the only one is \"direct\": leave the algorithm out",
             {name_of(algorithm_), device_name(device)}));
}

bool needs_lanes(Algorithm algorithm) {
  return algorithm != Algorithm::kAutomatic && algorithm != Algorithm::kDirect;
}

}  // namespace trireme::detail
