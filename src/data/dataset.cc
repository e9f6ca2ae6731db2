#include "trireme/data/dataset.h"

#include <bit>

#include "data/batch_layout.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

std::uint64_t word_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}
std::uint64_t word_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

template <class T>
std::uint64_t mixed(std::uint64_t state, const std::vector<T>& values) {
  state = mix(state, values.size());
  for (const T value : values) {
    state = mix(state, word_of(value));
  }
  return state;
}

}  // namespace

Preprocessing Dataset::preprocessing() const {
  return {};
}

std::uint64_t Dataset::fingerprint(std::int64_t sample) const {
  Batch batch;
  read({&sample, 1}, batch);
  std::uint64_t state = 0;
  for (const auto* values : {&batch.tokens, &batch.indices, &batch.labels}) {
    state = mixed(state, *values);
  }
  for (const auto* values : {&batch.dense, &batch.values, &batch.targets}) {
    state = mixed(state, *values);
  }
  return state;
}

std::int64_t SampleShape::dense_numel() const {
  std::int64_t numel = dense.empty() ? 0 : 1;
  for (const std::int64_t extent : dense) {
    numel *= extent;
  }
  return numel;
}

namespace detail {

void check_sample(std::int64_t sample, std::int64_t size) {
  TRIREME_CHECK(sample >= 0 && sample < size,
                "sample {} was asked for: the dataset has samples 0 to {}",
                {sample, size - 1});
}

void lay_out(Batch& batch,
             const SampleShape& shape,
             std::span<const std::int64_t> samples,
             std::int64_t size) {
  for (const std::int64_t sample : samples) {
    check_sample(sample, size);
  }
  const std::size_t count = samples.size();
  const bool dense = shape.kind == SampleKind::kDense;
  const bool tokens = shape.kind == SampleKind::kTokens;
  const bool sparse = shape.kind == SampleKind::kSparse;
  batch.samples = static_cast<std::int64_t>(count);
  batch.ids.assign(samples.begin(), samples.end());
  // Not cleared first: a vector that keeps its length is not filled with zeros again.
  batch.dense.resize(dense ? count * static_cast<std::size_t>(shape.dense_numel()) : 0);
  batch.tokens.resize(tokens ? count * static_cast<std::size_t>(shape.length) : 0);
  batch.offsets.resize(sparse ? count + 1 : 0);
  batch.indices.clear();
  batch.values.clear();
  batch.labels.resize(!tokens && shape.classes > 0 ? count : 0);
  batch.targets.resize(!tokens && shape.classes == 0 ? count : 0);
}

}  // namespace detail
}  // namespace trireme
