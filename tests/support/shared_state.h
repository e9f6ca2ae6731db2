#pragma once

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "trireme/parallel/engine.h"

namespace trireme::testing {

// A state, wherever it is, in memory that all processes of a test share.
class SharedState {
 public:
  SharedState()
      : memory_(static_cast<std::byte*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;
  ~SharedState() { munmap(memory_, kBytes); }

  bool operator==(const SharedState& other) const {
    return std::memcmp(memory_, other.memory_, kBytes) == 0;
  }

  void save(EngineBase& engine) {
    const EngineState state = engine.state();
    std::set<std::string> titles;
    for (const StateTensor& tensor : state.view.tensors) {
      EXPECT_TRUE(titles.insert(tensor.title()).second) << tensor.title();
    }
    each_slice(state.view, [](std::byte* kept, const StateSlice& slice, std::size_t bytes) {
      slice.read(0, kept, bytes);
    });
    if (engine.ranks().rank() == 0) {
      std::strcpy(reinterpret_cast<char*>(memory_), engine.progress().c_str());
    }
    engine.ranks().barrier().wait();
  }
  void load(EngineBase& engine) {
    engine.restore(
        [&](const StateView& into) {
          each_slice(into, [](std::byte* kept, const StateSlice& slice, std::size_t bytes) {
            slice.write(0, kept, bytes);
          });
        },
        reinterpret_cast<char*>(memory_));
  }

 private:
  static constexpr std::size_t kBytes = 24 << 20;

  // The generators are as many as ranks; nothing here is random.
  void each_slice(const StateView& view,
                  const std::function<void(std::byte*, const StateSlice&, std::size_t)>& visit) {
    std::vector<std::size_t> offsets;
    std::size_t end = 4096;
    for (const StateTensor& tensor : view.tensors) {
      offsets.push_back(end);
      end += tensor.kind == kRandomKind ? 0 : tensor.size_bytes();
    }
    ASSERT_LE(end, kBytes);
    for (const StateSlice& slice : view.slices) {
      const StateTensor& tensor = view.tensors[slice.tensor];
      const std::size_t element = dtype_bytes(tensor.dtype);
      if (tensor.kind != kRandomKind) {
        visit(
            memory_ + offsets[slice.tensor] + static_cast<std::size_t>(slice.range.begin) * element,
            slice,
            static_cast<std::size_t>(slice.range.size()) * element);
      }
    }
  }

  std::byte* memory_;
};

}  // namespace trireme::testing
