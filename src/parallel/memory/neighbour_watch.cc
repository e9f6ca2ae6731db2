#include "parallel/memory/neighbour_watch.h"

#include <chrono>

#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/log.h"

// Note [watching neighbours]
// A communicator notices dead peers, an ended launcher and a passed deadline while an operation of
// its own is waited for. So the watch is such an operation: a message from this rank to itself,
// asked for at the first look and sent at the end. Threads of a rank that watch at the same time
// may get each other's messages; each sends as many as it has asked for, so that none is left over.

namespace trireme::detail {
namespace {

// Between two looks: this process itself was stopped (Ctrl-Z), which is nobody's fault.
constexpr auto kTooLong = std::chrono::seconds(1);

}  // namespace

std::string Neighbour::name() const {
  return concat("rank ", rank, " (pid ", pid, ")");
}

std::vector<Neighbour> meet_neighbours(Communicator& world) {
  Communicator& machine = world.machine();
  const std::vector<std::int32_t> own = {world.rank(), static_cast<std::int32_t>(getpid())};
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(machine.size()));
  machine.all_gather(own, all).wait();
  std::vector<Neighbour> neighbours;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    neighbours.push_back({all[i], all[i + 1]});
  }
  return neighbours;
}

NeighbourWatch::~NeighbourWatch() {
  waiting_.forget();
  try {
    for (; begun_ > 0; --begun_) {
      Work message = machine_.send({nullptr, 0, Dtype::kUint8}, machine_.rank());
      message.done();
      message.forget();
    }
  } catch (const Error& error) {
    log(LogLevel::kDebug, error.what());  // the communicator is finished, and this wait with it
  }
}

void NeighbourWatch::begin() {
  waiting_.forget();
  waiting_ = machine_.recv({nullptr, 0, Dtype::kUint8}, machine_.rank());
  ++begun_;
}

void NeighbourWatch::look(int holder, const char* doing) {
  const auto now = Clock::now();
  const bool stopped = begun_ > 0 && now - last_look_ > kTooLong;
  last_look_ = now;
  try {
    // Also where it was another thread's message: then there is a deadline, but from now on.
    if (begun_ == 0 || stopped || waiting_.done()) {
      begin();
    }
  } catch (const CommError& error) {
    const CommError failure = of_the_world(error, holder, doing);
    if (&machine_ == &world_) {
      throw CommError(failure);  // it has failed already, but these words say more
    }
    throw world_.fail(failure);
  }
}

CommError NeighbourWatch::of_the_world(const CommError& error,
                                       int holder,
                                       const char* doing) const {
  using Reason = CommError::Reason;
  const auto neighbour = [&](int number) -> const Neighbour& {
    return neighbours_[static_cast<std::size_t>(number)];
  };
  const std::string self = concat("rank ", neighbour(machine_.rank()).rank);
  // One of another machine has no number here, and the words are the world's already.
  if (error.reason() == Reason::kPeerDied && error.peer() >= 0) {
    const Neighbour& dead = neighbour(error.peer());
    return CommError(Reason::kPeerDied,
                     dead.rank,
                     concat("{}: {}, on the same machine, ended without leaving the world: it "
                            "crashed or was killed",
                            {self, dead.name()}));
  }
  if (error.reason() == Reason::kTimeout) {
    const Neighbour& other = neighbour(holder);
    return CommError(Reason::kTimeout,
                     other.rank,
                     concat("{} waited until its deadline for {}, on the same machine, which {}: "
                            "it is stopped, or cut off from the network; --timeout allows more",
                            {self, other.name(), doing}));
  }
  const int peer = error.peer();
  return CommError(error.reason(), peer < 0 ? peer : neighbour(peer).rank, error.what());
}

}  // namespace trireme::detail
