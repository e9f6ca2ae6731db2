#pragma once

#include <vector>

namespace trireme::bench {

// Who is measured when. Systems take turns, round after round, so that a slow minute of the machine
// hits all of them; and each round begins with another one and every second goes backwards, so that
// none always has the same place, or the same one before it.
template <typename System>
std::vector<System> turn_order(const std::vector<System>& systems, int round, int rounds) {
  const int count = static_cast<int>(systems.size());
  std::vector<System> order;
  const int first = rounds < count ? round * count / rounds : round;
  for (int i = 0; i < count; ++i) {
    const int steps = round % 2 == 0 ? i : count - i;
    order.push_back(systems[static_cast<std::size_t>((first + steps) % count)]);
  }
  return order;
}

}  // namespace trireme::bench
