#include "trireme/shard/state_view.h"

#include <cstring>

namespace trireme {

void StateSlice::read(std::uint64_t begin, std::byte* to, std::size_t bytes) const {
  if (store != nullptr) {
    store->read(offset + begin, to, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, data + begin, bytes);
  }
}

void StateSlice::write(std::uint64_t begin, const std::byte* from, std::size_t bytes) const {
  if (store != nullptr) {
    store->write(offset + begin, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(data + begin, from, bytes);
  }
}

std::int64_t StateTensor::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::size_t StateView::size_bytes() const {
  std::size_t bytes = 0;
  for (const StateSlice& slice : slices) {
    bytes +=
        static_cast<std::size_t>(slice.range.size()) * dtype_bytes(tensors[slice.tensor].dtype);
  }
  return bytes;
}

std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * (shape[i] > 1 ? shape[i] : 1);
  }
  return strides;
}

}  // namespace trireme
