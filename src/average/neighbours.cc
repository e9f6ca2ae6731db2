#include "average/neighbours.h"

#include <numeric>
#include <utility>

#include "trireme/core/index.h"
#include "trireme/core/random.h"

namespace trireme::detail {
namespace {

// The partner of a replica where all are drawn in pairs; itself where it stays alone.
int drawn_partner(int replica, int replicas, std::uint64_t key) {
  std::vector<int> order(index(replicas));
  std::iota(order.begin(), order.end(), 0);
  RandomStream random(key);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
    if (order[i] == replica || order[i + 1] == replica) {
      return order[i] == replica ? order[i + 1] : order[i];
    }
  }
  return replica;
}

}  // namespace

Neighbours neighbours_of(int replica, int replicas, const Gossip& gossip, std::int64_t round) {
  if (replicas == 1) {
    return {};
  }
  const int after = (replica + 1) % replicas;
  const int before = (replica + replicas - 1) % replicas;
  switch (gossip.graph) {
    case Gossip::Graph::kRing:
      if (before == after) {
        return {{after}, {after}};
      }
      return {{before, after}, {before, after}};
    case Gossip::Graph::kExponential: {
      int distances = 0;  // 1, 2, 4, ... below the number of replicas
      while (std::int64_t{1} << distances < replicas) {
        ++distances;
      }
      const int distance = 1 << round % distances;
      return {{(replica + replicas - distance) % replicas}, {(replica + distance) % replicas}};
    }
    case Gossip::Graph::kRandom:
      break;
  }
  const int partner = drawn_partner(replica, replicas, mix(gossip.seed, round));
  return partner == replica ? Neighbours{} : Neighbours{{partner}, {partner}};
}

}  // namespace trireme::detail
