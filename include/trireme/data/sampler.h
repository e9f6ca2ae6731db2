#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme {

enum class Sampling {
  kShuffled,    // every sample once in each epoch, in an order of the epoch's own
  kBalanced,    // drawn with replacement, every class equally often
  kWeighted,    // drawn with replacement, classes in proportion to class_weights
  kSequential,  // in the order of the file, over and over
};

// Which share a sample belongs to. kUniform has no shares: batches are dealt from one stream.
enum class Partition { kUniform, kHash, kCustom };

struct SamplerOptions {
  std::uint64_t seed = 0;
  Sampling sampling = Sampling::kShuffled;
  std::vector<double> class_weights{};  // kWeighted: one per class

  // With kHash or kCustom the samples are divided into `shares`, and micro-batch m of a step holds
  // samples of share m % shares only; the ranks that compute it need no others. Shares follow the
  // micro-batch and not the rank, so that the world's size changes nothing. The number of
  // micro-batches in a step is a multiple of `shares`. A share that is used up before others starts
  // again, in a new order.
  Partition partition = Partition::kUniform;
  std::int64_t shares = 1;
  std::function<std::int64_t(std::int64_t sample)> share_of{};  // kCustom
};

// Where a run is in its data: how many samples all its steps together have taken. The whole state
// of a sampler; save it and resume from it, even in mid-epoch and with another batch size.
using DataPosition = std::int64_t;

// Which samples each micro-batch of each step holds: a pure function of the options and the
// position, the same for any number of ranks. Epochs follow each other without a gap: a step at the
// end of one takes its last samples and the first of the next. Shuffling takes no memory per sample
// (a keyed permutation), so any number of samples will do. Thread-safe.
class Sampler {
 public:
  // Throws ConfigError for options that the dataset cannot serve (classes without labels, an empty
  // share, a weight per class that is missing, nothing to draw from).
  Sampler(std::shared_ptr<const Dataset> data, const SamplerOptions& options);

  // The samples of micro-batch `micro_batch` (each of `samples`) of the step that begins at
  // `position`, into `out`.
  void fill(DataPosition position,
            std::int64_t micro_batch,
            std::int64_t samples,
            std::vector<std::int64_t>& out) const;

  // Samples in an epoch (all of them; with shares, as many as the longest share makes it).
  std::int64_t epoch_samples() const;
  double epoch_at(DataPosition position) const;
  // Samples of each class in each share, [shares][classes]; empty without labels.
  std::vector<std::vector<std::int64_t>> class_content() const;

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace trireme
