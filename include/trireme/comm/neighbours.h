#pragma once

#include <vector>

namespace trireme {

// Whom a rank hears, and who hears it, where each exchanges with some of the others: other ranks,
// each once. One that is named in `from` names this rank in its `to`.
struct Neighbours {
  std::vector<int> from;
  std::vector<int> to;
};

// In a ring, both ways: the rank before this one and the one after it. Of two ranks the other one,
// of one nobody.
Neighbours ring_neighbours(int rank, int size);

}  // namespace trireme
