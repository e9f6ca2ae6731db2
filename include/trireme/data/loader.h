#pragma once

#include <cstdint>
#include <memory>

#include "trireme/data/sampler.h"

namespace trireme {

// Random changes to training images [channels, rows, columns]; flat features take noise only. The
// numbers follow from the seed and the sample's place in the run, not from rank or thread.
struct Augmentation {
  int shift = 0;      // up to this many pixels along each axis, Dataset::background moves in
  bool flip = false;  // left to right, every other time
  double noise = 0;   // standard deviation of what is added to each value of a batch
};

struct LoaderOptions {
  Augmentation augmentation{};
  std::uint64_t seed = 0;
  int threads = 1;  // that prepare batches ahead of their use; 0: prepared when asked for
  int ahead = 2;    // batches that may wait, prepared; those in work when it is reached come on top
};

// Prepares batches in the background: ask for them in the order of their use, take them in the same
// order. Its threads block all signals. Calls come from one thread.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> data, const Sampler& sampler, const LoaderOptions& options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();  // what was asked for and not taken is dropped

  // Micro-batch `micro_batch`, of `samples` samples, of the step at `position`. Returns at once.
  void request(DataPosition position, std::int64_t micro_batch, std::int64_t samples);
  std::size_t outstanding() const;  // requested, not taken

  // The next requested batch; waits until it is ready. Valid until the next call. Throws what
  // reading it threw (DataError); ConfigError when nothing was requested.
  const Batch& next();
  // Forgets what was requested and not taken.
  void clear();

  double waited_seconds() const;  // in next(), since the start

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
