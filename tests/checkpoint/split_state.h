#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "checkpoint/made_checkpoint.h"
#include "support/reference.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/core/error.h"

// A state whose elements come from formulas, divided among ranks in any way.

namespace trireme::testing {

// The elements of tensor number `tensor` that one rank has.
using Split =
    std::function<std::vector<Range>(std::size_t tensor, std::int64_t numel, int ranks, int rank)>;

inline std::vector<Range> even_split(std::size_t, std::int64_t numel, int ranks, int rank) {
  return {even_range(numel, ranks, rank)};
}

// Whole tensors, dealt in turn.
inline std::vector<Range> whole_split(std::size_t tensor, std::int64_t numel, int ranks, int rank) {
  if (static_cast<int>(tensor % static_cast<std::size_t>(ranks)) != rank) {
    return {};
  }
  return {{0, numel}};
}

// Runs of `length` elements, dealt in turn, the last ones first.
inline Split dealt_split(std::int64_t length) {
  return [length](std::size_t tensor, std::int64_t numel, int ranks, int rank) {
    std::vector<Range> runs;
    const std::int64_t count = (numel + length - 1) / length;
    for (std::int64_t run = count; run-- > 0;) {
      if ((run + static_cast<std::int64_t>(tensor)) % ranks == rank) {
        runs.push_back({run * length, std::min((run + 1) * length, numel)});
      }
    }
    return runs;
  };
}

inline MadeTensor random_tensor(const std::string& kind,
                                const std::string& name,
                                Dtype dtype,
                                std::vector<std::int64_t> shape,
                                std::vector<std::int64_t> strides = {},
                                int seed = 0) {
  MadeTensor result{{kind, name, dtype, std::move(shape), std::move(strides)}, {}};
  const Bytes bytes = make_input(dtype, result.tensor.numel(), seed);
  result.bytes.resize(bytes.size());
  if (!bytes.empty()) {
    std::memcpy(result.bytes.data(), bytes.data(), bytes.size());
  }
  return result;
}

// What a rank has of the tensors, in memory of its own.
class SplitState {
 public:
  enum class Content { kCopied, kErased };

  SplitState(const std::vector<MadeTensor>& tensors,
             const Split& split,
             int ranks,
             int rank,
             Content content = Content::kCopied)
      : tensors_(tensors) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      view_.tensors.push_back(tensors[t].tensor);
      for (const Range& range : split(t, tensors[t].tensor.numel(), ranks, rank)) {
        auto memory = std::make_unique<std::vector<std::byte>>(size_of(t, range), std::byte{0xA5});
        if (content == Content::kCopied && !memory->empty()) {
          std::memcpy(memory->data(), original(t, range), memory->size());
        }
        view_.slices.push_back({t, range, memory->data()});
        memory_.push_back(std::move(memory));
      }
    }
  }

  const StateView& view() const { return view_; }

  // The names of the tensors of which something differs from the originals.
  std::vector<std::string> wrong() const {
    std::vector<std::string> found;
    for (std::size_t i = 0; i < view_.slices.size(); ++i) {
      const StateSlice& slice = view_.slices[i];
      if (!memory_[i]->empty() &&
          std::memcmp(
              memory_[i]->data(), original(slice.tensor, slice.range), memory_[i]->size()) != 0) {
        found.push_back(view_.tensors[slice.tensor].title());
      }
    }
    return found;
  }

 private:
  std::size_t size_of(std::size_t tensor, Range range) const {
    return static_cast<std::size_t>(range.size()) * dtype_bytes(tensors_[tensor].tensor.dtype);
  }
  const std::byte* original(std::size_t tensor, Range range) const {
    return tensors_[tensor].bytes.data() + size_of(tensor, {0, range.begin});
  }

  const std::vector<MadeTensor>& tensors_;
  StateView view_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

// A writer's view of a world that outlives it.
inline std::shared_ptr<Communicator> borrowed(World& world) {
  return {&world, [](Communicator*) {}};
}

inline CheckpointOptions waiting() {
  CheckpointOptions options;
  options.wait = true;
  return options;
}

// Saves the tensors from ranks that are threads.
inline void save_split(const std::string& folder,
                       std::int64_t step,
                       const std::vector<MadeTensor>& tensors,
                       const Split& split,
                       int ranks,
                       const Notes& notes = {}) {
  spawn_world(ranks, [&](World& world) {
    const SplitState state(tensors, split, world.size(), world.rank());
    CheckpointWriter writer(folder, borrowed(world), waiting());
    writer.save(step, state.view(), notes);
  });
}

// Loads them on so many ranks; the titles of what is not as it was.
inline std::vector<std::string> load_split(const std::string& checkpoint,
                                           const std::vector<MadeTensor>& tensors,
                                           const Split& split,
                                           int ranks) {
  std::vector<std::string> wrong;
  for (int rank = 0; rank < ranks; ++rank) {
    const SplitState state(tensors, split, ranks, rank, SplitState::Content::kErased);
    const CheckpointReader reader(checkpoint);
    reader.load(state.view());
    for (const std::string& title : state.wrong()) {
      wrong.push_back(detail::concat("rank ", rank, ": ", title));
    }
  }
  return wrong;
}

}  // namespace trireme::testing
