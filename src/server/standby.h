#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/kept_versions.h"
#include "server/shard.h"
#include "trireme/comm/world.h"
#include "trireme/server/stale_engine.h"

namespace trireme::detail {

// Of a worker's engine alone: buffers, and its generator.
inline bool is_of_worker(const StateTensor& tensor) {
  return tensor.kind == kBufferKind || tensor.kind == kRandomKind;
}

// What ranks of stale training keep of themselves (Stale::replicas), so that those who come after a
// loss go on without a checkpoint.
//
// Note [what outlives a loss]
// An owner keeps each version that it makes before anyone gets it: masters, states, averages and
// counts, and beside them the weights, with which workers compute up to `bound` steps later. A
// worker keeps what is its own (buffers, its generator, its loss scale, notes) after each step.
// From a version n that all owners and all workers have kept, all go on: gradients that had come
// for later steps are computed again, of the same weights, and have the same bits.
//
// There is such an n at any instant. A worker sends the gradients of step n when every owner has
// answered those of step n - 1, which it does when it has kept version n (the last of them, and
// nobody sends more before), and when it has itself kept what it was after step n - 1. An owner
// makes version n + 1 of the gradients of step n of all workers. So while it writes n + 1 over
// n - 1, everyone has n, and owners need two places. A worker is up to `bound` steps ahead of the
// newest version that all have, and that may be followed by one that not all have: it needs
// bound + 2 places. So do the owners' weights: version n's step computes with those of n - bound.
class Standby {
 public:
  // Looks at what there is. Throws ConfigError where nothing can be kept, by name.
  // `number`: see KeptVersions.
  Standby(std::shared_ptr<World> world, int workers, std::int64_t bound, std::int64_t number);

  // --- what there is to go on from

  struct Point {
    std::int64_t step = 0;
    std::int64_t first = 0;  // after it, all ranks went on from the newest weights
    Notes notes;             // rank 0's
  };
  const std::optional<Point>& point() const { return point_; }
  // What this rank had kept, ...
  std::vector<StateView> own() const;
  // ... its engine's progress, ...
  std::string progress() const;
  // ... and of the owner that it is, the weights of a version, as Shard::weights() has them.
  const std::byte* weights(std::int64_t version) const;

  // --- what is kept from now on

  struct Kept {
    StateView part;   // of the owner; its data does not move
    StateView local;  // of the worker, now
    Notes notes;      // of the worker, now
    std::vector<std::shared_ptr<const Shard::Snapshot>> weights;  // that somebody may ask for
    std::int64_t version = 0;
  };
  // Takes the memory, and all ranks keep what they begin with. Collective.
  void begin(const Kept& kept);
  bool keeps() const { return keeps_; }
  void stop() { keeps_ = false; }
  // The owner's. `part` as it was in the beginning.
  void keep_version(const Shard::Snapshot& weights);
  // The worker's.
  void keep_local(std::int64_t step, const StateView& local, const Notes& notes);

 private:
  enum Shelf : int { kPart, kWeights, kLocal, kShelves };
  StateView view_of(const Shard::Snapshot& weights) const;

  std::shared_ptr<World> world_;
  const int workers_;
  const std::int64_t bound_;
  KeptVersions memory_;
  std::optional<Point> point_;
  StateView part_;
  bool keeps_ = false;
};

}  // namespace trireme::detail
