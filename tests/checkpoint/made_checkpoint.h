#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "trireme/checkpoint/checkpoint_writer.h"

// Checkpoints whose contents a test knows.

namespace trireme::testing {

// A tensor and its elements in the order of its memory.
struct MadeTensor {
  StateTensor tensor;
  std::vector<std::byte> bytes;
};

// Elements of a tensor, row by row, given by a function of their number.
template <class T>
MadeTensor made(const std::string& kind,
                const std::string& name,
                std::vector<std::int64_t> shape,
                const std::function<T(std::int64_t)>& value) {
  MadeTensor result{{kind, name, DtypeOf<T>::kValue, std::move(shape), {}}, {}};
  for (std::int64_t i = 0; i < result.tensor.numel(); ++i) {
    const T element = value(i);
    const auto* bytes = reinterpret_cast<const std::byte*>(&element);
    result.bytes.insert(result.bytes.end(), bytes, bytes + sizeof(T));
  }
  return result;
}

// The same matrix, by columns.
inline MadeTensor by_columns(const MadeTensor& matrix) {
  MadeTensor result = matrix;
  const auto rows = static_cast<std::size_t>(matrix.tensor.shape.at(0));
  const auto columns = static_cast<std::size_t>(matrix.tensor.shape.at(1));
  const std::size_t bytes = dtype_bytes(matrix.tensor.dtype);
  for (std::size_t i = 0; i < rows * columns * bytes; ++i) {
    const std::size_t element = i / bytes;
    const std::size_t from = (element % rows * columns + element / rows) * bytes;
    result.bytes[i] = matrix.bytes[from + i % bytes];
  }
  result.tensor.strides = {1, matrix.tensor.shape[0]};
  return result;
}

// Saves them, each divided evenly among so many ranks.
inline void save_checkpoint(const std::string& folder,
                            std::int64_t step,
                            const std::vector<MadeTensor>& tensors,
                            const Notes& notes = {},
                            int ranks = 2) {
  spawn_world(ranks, [&](World& world) {
    StateView state;
    for (const MadeTensor& each : tensors) {
      const Range range = even_range(each.tensor.numel(), world.size(), world.rank());
      const std::size_t begin =
          static_cast<std::size_t>(range.begin) * dtype_bytes(each.tensor.dtype);
      state.slices.push_back(
          {state.tensors.size(), range, const_cast<std::byte*>(each.bytes.data()) + begin});
      state.tensors.push_back(each.tensor);
    }
    CheckpointOptions options;
    options.wait = true;
    CheckpointWriter writer(
        folder, std::shared_ptr<Communicator>(&world, [](Communicator*) {}), options);
    writer.save(step, state, notes);
  });
}

}  // namespace trireme::testing
