#pragma once

#include <functional>
#include <vector>

#include "trireme/shard/state_view.h"

namespace trireme::detail {

// A number of elements, never negative, as that of a container.
constexpr std::size_t size_of(std::int64_t numel) {
  return static_cast<std::size_t>(numel);
}

// Some slices of a state, all of one dtype, as one run of elements.
class FlatState {
 public:
  using Choice = std::function<bool(const StateTensor& tensor)>;
  FlatState(const StateView& view, Dtype dtype, const Choice& chosen);

  Dtype dtype() const { return dtype_; }
  std::int64_t numel() const { return numel_; }
  void read(Range range, std::byte* to) const;
  void write(Range range, const std::byte* from) const;
  // The slices of the state that a range of the run is made of.
  std::vector<StateSlice> slices(Range range) const;

 private:
  struct Part {
    std::int64_t begin = 0;  // in the run
    StateSlice slice;
  };

  Dtype dtype_;
  std::int64_t numel_ = 0;
  std::vector<Part> parts_;
};

// What can be averaged, one after another; always in this order.
inline constexpr Dtype kAveragedDtypes[] = {
    Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};

}  // namespace trireme::detail
