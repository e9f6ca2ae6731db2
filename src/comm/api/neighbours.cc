#include "trireme/comm/neighbours.h"

namespace trireme {

Neighbours ring_neighbours(int rank, int size) {
  const int after = (rank + 1) % size;
  const int before = (rank + size - 1) % size;
  if (after == rank) {
    return {};
  }
  if (after == before) {
    return {{after}, {after}};
  }
  return {{before, after}, {before, after}};
}

}  // namespace trireme
