#include "checkpoint_state.h"

#include <algorithm>

#include "trireme/shard/range.h"

namespace trireme::bench {
namespace {

// Of each element: a weight and two states.
constexpr const char* kKinds[] = {kWeightKind, "optimizer.exp_avg", "optimizer.exp_avg_sq"};
constexpr std::int64_t kBytesPerParameter = 12;

constexpr std::int64_t kLayersAtLeast = 8;
constexpr std::int64_t kSmallestWidth = 16;
constexpr std::int64_t kTokensPerWidth = 16;

std::int64_t layer_numel(std::int64_t width) {
  return 12 * width * width + 13 * width;
}

void add_layer(std::int64_t width, const std::string& layer, std::vector<StateTensor>& tensors) {
  const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
    tensors.push_back({"", layer + name, Dtype::kFloat32, std::move(shape), {}});
  };
  add("norm1.weight", {width});
  add("norm1.bias", {width});
  add("qkv.weight", {3 * width, width});
  add("qkv.bias", {3 * width});
  add("out.weight", {width, width});
  add("out.bias", {width});
  add("norm2.weight", {width});
  add("norm2.bias", {width});
  add("up.weight", {4 * width, width});
  add("up.bias", {4 * width});
  add("down.weight", {width, 4 * width});
  add("down.bias", {width});
}

}  // namespace

std::vector<StateTensor> gpt_state(std::size_t bytes) {
  const std::int64_t parameters = static_cast<std::int64_t>(bytes) / kBytesPerParameter;
  std::int64_t width = kSmallestWidth;
  while (kLayersAtLeast * layer_numel(2 * width) <= parameters) {
    width *= 2;
  }
  const std::int64_t tokens = kTokensPerWidth * width;
  const std::int64_t layers = std::max<std::int64_t>(
      1, (parameters - 2 * tokens * width + layer_numel(width) / 2) / layer_numel(width));
  std::vector<StateTensor> model = {{"", "tokens.weight", Dtype::kFloat32, {tokens, width}, {}}};
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    add_layer(width, "blocks." + std::to_string(layer) + ".", model);
  }
  model.push_back({"", "head.weight", Dtype::kFloat32, {tokens, width}, {}});
  std::vector<StateTensor> tensors;
  for (const char* kind : kKinds) {
    for (StateTensor tensor : model) {
      tensor.kind = kind;
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

std::size_t state_bytes(const std::vector<StateTensor>& tensors) {
  std::size_t bytes = 0;
  for (const StateTensor& tensor : tensors) {
    bytes += static_cast<std::size_t>(tensor.numel()) * dtype_bytes(tensor.dtype);
  }
  return bytes;
}

RankState::RankState(std::vector<StateTensor> tensors, int ranks, int rank) {
  view_.tensors = std::move(tensors);
  for (std::size_t i = 0; i < view_.tensors.size(); ++i) {
    view_.slices.push_back({i, even_range(view_.tensors[i].numel(), ranks, rank), nullptr});
  }
  memory_ = device::Buffer(view_.size_bytes());
  std::byte* next = memory_.data();
  for (StateSlice& slice : view_.slices) {
    slice.data = next;
    next += static_cast<std::size_t>(slice.range.size()) *
            dtype_bytes(view_.tensors[slice.tensor].dtype);
  }
  fill(static_cast<std::uint64_t>(rank));
}

void RankState::fill(std::uint64_t seed) {
  auto* values = reinterpret_cast<float*>(data());
  std::uint64_t bits = 2 * seed + 1;
  for (std::size_t i = 0; i < size_bytes() / sizeof(float); ++i) {
    bits = bits * 6364136223846793005U + 1442695040888963407U;  // Knuth's
    values[i] = static_cast<float>(bits >> 40U);
  }
}

}  // namespace trireme::bench
