#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme {

struct Preprocessing;

enum class SampleKind {
  kDense,   // numbers of one shape, and a class or a number to predict
  kTokens,  // a run of tokens, each to be predicted from those before it
  kSparse,  // (index, value) pairs, and a class or a number to predict
};

// What the samples of a dataset look like.
struct SampleShape {
  SampleKind kind = SampleKind::kDense;
  std::vector<std::int64_t> dense{};  // kDense: {1, 28, 28} (channels, rows, columns) or {columns}
  std::int64_t length = 0;            // kTokens: tokens of a sample, the last one only as a target
  std::int64_t features = 0;          // kSparse: indices are below this
  // Labels (or tokens) are 0 ... classes - 1. 0: targets are numbers (regression; not of tokens).
  std::int64_t classes = 0;

  std::int64_t dense_numel() const;
  bool operator==(const SampleShape&) const = default;
};

// Some samples, ready to be trained on. Vectors that do not belong to the kind are empty. A batch
// is reused for the next samples: nothing is allocated in a steady state.
struct Batch {
  std::int64_t samples = 0;
  std::vector<float> dense;          // kDense: samples x shape
  std::vector<std::int64_t> tokens;  // kTokens: samples x length
  std::vector<std::int64_t>
      offsets;  // kSparse: row i is [offsets[i], offsets[i + 1]) of the next two
  std::vector<std::int64_t> indices;
  std::vector<float> values;
  std::vector<std::int64_t> labels;  // with classes
  std::vector<float> targets;        // without
  std::vector<std::int64_t> ids;     // which samples these are, as the dataset that was read counts
};

// Samples on disk (memory-mapped, so that a file may be larger than memory) or in memory, readable
// in any order. All const calls are thread-safe. Files are checked as far as it is cheap when they
// are opened, and the rest where it is read; both throw DataError with file, offset, what was
// expected and what was found.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual const SampleShape& shape() const = 0;
  // The class of a sample; only of datasets with labels (not kTokens, not regression).
  virtual std::int64_t label(std::int64_t sample) const = 0;
  // Replaces what `batch` holds by these samples, in this order.
  virtual void read(std::span<const std::int64_t> samples, Batch& batch) const = 0;
  // What the classes are called in the file, by their numbers; empty where they are numbers there,
  // the same ones.
  virtual std::vector<std::string> class_names() const { return {}; }
  // How its numbers come from what the file holds (data/preprocessing.h): for reading other files
  // the same way.
  virtual Preprocessing preprocessing() const;
  // Of images: what stands for nothing (a black pixel, 0 in the file) in each channel; empty: 0.
  virtual std::vector<float> background() const { return {}; }
  // A number that follows from what a sample holds, targets included, as its file has it: the same
  // in every part of the data and however it is normalised. Tells whether two runs were evaluated
  // on the same samples.
  virtual std::uint64_t fingerprint(std::int64_t sample) const;
};

}  // namespace trireme
