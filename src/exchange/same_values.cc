#include "exchange/same_values.h"

#include <vector>

namespace trireme::detail {

bool same_values(const TensorSource& source, std::size_t a, std::size_t b) {
  const StateTensor& first = source.tensors()[a];
  const StateTensor& second = source.tensors()[b];
  if (first.dtype != second.dtype || first.shape != second.shape) {
    return false;
  }
  std::vector<std::byte> values(first.size_bytes());
  std::vector<std::byte> others(values.size());
  source.read(a, values.data());
  source.read(b, others.data());
  return values == others;
}

}  // namespace trireme::detail
