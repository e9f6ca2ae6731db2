#include "trireme/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "checkpoint/convert.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;
using Bytes = std::vector<std::byte>;

std::string form_of(const StateTensor& tensor) {
  return concat(dtype_name(tensor.dtype), " [", detail::listed(tensor.shape), "]");
}

Bytes values_of(const TensorSource& source, std::size_t tensor) {
  Bytes values(source.tensors()[tensor].size_bytes());
  source.read(tensor, values.data());
  return values;
}

template <class T>
double integer_distance(const std::byte* a, const std::byte* b) {
  T first;
  T second;
  std::memcpy(&first, a, sizeof(T));
  std::memcpy(&second, b, sizeof(T));
  // Exact also where the difference is no number of T. A signed char is a number here, too.
  // NOLINTNEXTLINE(bugprone-signed-char-misuse)
  const auto high = static_cast<std::uint64_t>(std::max(first, second));
  // NOLINTNEXTLINE(bugprone-signed-char-misuse)
  const auto low = static_cast<std::uint64_t>(std::min(first, second));
  return static_cast<double>(high - low);
}

double distance(Dtype dtype, const std::byte* a, const std::byte* b) {
  switch (dtype) {
    case Dtype::kInt32:
      return integer_distance<std::int32_t>(a, b);
    case Dtype::kInt64:
      return integer_distance<std::int64_t>(a, b);
    case Dtype::kInt16:
      return integer_distance<std::int16_t>(a, b);
    case Dtype::kInt8:
      return integer_distance<std::int8_t>(a, b);
    case Dtype::kUint8:
    case Dtype::kBool:
      return integer_distance<std::uint8_t>(a, b);
    default:
      break;
  }
  double first = 0;
  double second = 0;
  detail::convert(dtype, a, Dtype::kFloat64, reinterpret_cast<std::byte*>(&first), 1);
  detail::convert(dtype, b, Dtype::kFloat64, reinterpret_cast<std::byte*>(&second), 1);
  if (std::isnan(first) && std::isnan(second)) {
    return 0;
  }
  const double difference = first == second ? 0 : std::fabs(first - second);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

// Of two tensors in one type.
void count_differences(Dtype dtype, const Bytes& a, const Bytes& b, TensorDifference& result) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) {
    return;
  }
  const std::size_t bytes = dtype_bytes(dtype);
  for (std::size_t at = 0; at < a.size(); at += bytes) {
    if (std::memcmp(a.data() + at, b.data() + at, bytes) != 0) {
      ++result.differing;
      result.largest = std::max(result.largest, distance(dtype, a.data() + at, b.data() + at));
    }
  }
}

Bytes in_float64(const Bytes& values, Dtype dtype) {
  const std::size_t numel = values.size() / dtype_bytes(dtype);
  Bytes wide(numel * sizeof(double));
  detail::convert(
      dtype, values.data(), Dtype::kFloat64, wide.data(), static_cast<std::int64_t>(numel));
  return wide;
}

TensorDifference difference_of(const TensorSource& a,
                               std::size_t in_a,
                               const TensorSource& b,
                               std::size_t in_b) {
  const StateTensor& first = a.tensors()[in_a];
  const StateTensor& second = b.tensors()[in_b];
  TensorDifference result;
  result.title = first.title();
  result.numel = first.numel();
  if (first.shape != second.shape || first.dtype != second.dtype) {
    result.form = concat(form_of(first), " and ", form_of(second));
  }
  if (first.shape != second.shape || !detail::can_convert(first.dtype, second.dtype)) {
    return result;
  }
  const Bytes values_a = values_of(a, in_a);
  const Bytes values_b = values_of(b, in_b);
  if (first.dtype == second.dtype) {
    count_differences(first.dtype, values_a, values_b, result);
  } else {
    count_differences(Dtype::kFloat64,
                      in_float64(values_a, first.dtype),
                      in_float64(values_b, second.dtype),
                      result);
  }
  return result;
}

}  // namespace

TensorComparison compare_tensors(const TensorSource& a, const TensorSource& b, bool by_kind) {
  const auto key = [&](const StateTensor& tensor) {
    return std::pair(by_kind ? tensor.kind : "", tensor.name);
  };
  std::map<std::pair<std::string, std::string>, std::size_t> of_b;
  for (std::size_t i = 0; i < b.tensors().size(); ++i) {
    of_b[key(b.tensors()[i])] = i;
  }
  TensorComparison result;
  std::vector<bool> matched(b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const auto found = of_b.find(key(a.tensors()[i]));
    if (found == of_b.end()) {
      result.only_a.push_back(a.tensors()[i].title());
      continue;
    }
    matched[found->second] = true;
    TensorDifference difference = difference_of(a, i, b, found->second);
    if (difference.form.empty() && difference.differing == 0) {
      ++result.equal;
    } else {
      result.different.push_back(std::move(difference));
    }
  }
  for (std::size_t i = 0; i < matched.size(); ++i) {
    if (!matched[i]) {
      result.only_b.push_back(b.tensors()[i].title());
    }
  }
  return result;
}

}  // namespace trireme
