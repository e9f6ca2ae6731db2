#pragma once

#include <cstddef>
#include <vector>

#include "device/buffer.h"
#include "trireme/shard/state_view.h"

namespace trireme::bench {

// The state of a GPT in training, about `bytes` in all: weights and the two states of AdamW, in
// float32.
std::vector<StateTensor> gpt_state(std::size_t bytes);

std::size_t state_bytes(const std::vector<StateTensor>& tensors);

// What one rank has of it: its even part of every tensor, one after another.
class RankState {
 public:
  RankState(std::vector<StateTensor> tensors, int ranks, int rank);

  const StateView& view() const { return view_; }
  std::byte* data() const { return memory_.data(); }
  std::size_t size_bytes() const { return memory_.size_bytes(); }
  // Numbers that no disk can compress; others for every seed.
  void fill(std::uint64_t seed);

 private:
  StateView view_;
  device::Buffer memory_;
};

}  // namespace trireme::bench
