#pragma once

#include <memory>

#include "trireme/comm/communicator.h"

namespace trireme {

struct ReplicaOptions {
  static constexpr int kMachine = 0;
  int ranks = 1;  // of each replica: a number that divides the world; kMachine: those of a machine
};

// A world, divided into replicas of a model: groups of as many ranks each, that train with an
// engine each and are averaged with one another (average/averaging.h). Of replicas of k ranks, the
// first has the ranks 0 to k - 1.
class Replicas {
 public:
  // Collective. Throws ConfigError for a world that cannot be divided so.
  explicit Replicas(std::shared_ptr<Communicator> world, const ReplicaOptions& options = {});

  int count() const { return across_->size(); }
  int number() const { return across_->rank(); }  // of the one that this rank belongs to

  // The ranks of this rank's replica: an engine's world.
  const std::shared_ptr<Communicator>& mine() const { return mine_; }
  // The ranks that have this one's place in each replica, in the order of the replicas.
  Communicator& across() const { return *across_; }
  Communicator& world() const { return *world_; }

 private:
  std::shared_ptr<Communicator> world_;
  std::shared_ptr<Communicator> mine_;
  std::shared_ptr<Communicator> across_;
};

}  // namespace trireme
