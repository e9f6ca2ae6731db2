#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// A rank of this machine, as the world knows it.
struct Neighbour {
  std::int32_t rank = 0;
  std::int32_t pid = 0;

  std::string name() const;
};

// The ranks of this one's machine, in its order. Collective over them.
std::vector<Neighbour> meet_neighbours(Communicator& world);

// Looks after the ranks of this machine while this one waits for one of them in shared memory,
// where no operation would notice that it is gone. One for each wait; costs nothing until the first
// look.
class NeighbourWatch {
 public:
  // How long to sleep between two looks.
  static constexpr Milliseconds kInterval{20};

  NeighbourWatch(Communicator& world, const std::vector<Neighbour>& neighbours)
      : world_(world), machine_(world.machine()), neighbours_(neighbours) {}
  NeighbourWatch(const NeighbourWatch&) = delete;
  NeighbourWatch& operator=(const NeighbourWatch&) = delete;
  ~NeighbourWatch();

  // Throws CommError when a rank of the machine has died, or when this one has looked for as long
  // as the machine's deadline allows; the world has then failed with that, on every rank. `holder`
  // is the machine's number of the rank that is waited for, `doing` what it does meanwhile:
  // "fetches ...".
  void look(int holder, const char* doing);

 private:
  void begin();
  CommError of_the_world(const CommError& error, int holder, const char* doing) const;

  Communicator& world_;
  Communicator& machine_;
  const std::vector<Neighbour>& neighbours_;
  Work waiting_;
  int begun_ = 0;  // waits, each of which is to be ended
  Clock::time_point last_look_;
};

}  // namespace trireme::detail
