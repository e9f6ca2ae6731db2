// Values in other types and memory orders, against arithmetic on the definition of the formats.

#include "checkpoint/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::MadeTensor;
using testing::random_tensor;
using testing::SplitState;
using testing::TemporaryFolder;

// A format: bits of the mantissa, exponent of the smallest normal number, largest finite value.
struct Format {
  Dtype dtype;
  int mantissa;
  int least;
  double largest;
};
constexpr Format kFormats[] = {
    {Dtype::kFloat64, 52, -1022, std::numeric_limits<double>::max()},
    {Dtype::kFloat32, 23, -126, std::numeric_limits<float>::max()},
    {Dtype::kFloat16, 10, -14, 65504.0},
    {Dtype::kBFloat16, 7, -126, 0x1.FEp127},
};

double value_of(Dtype dtype, const std::byte* at) {
  std::uint16_t half = 0;
  float single = 0;
  double wide = 0;
  switch (dtype) {
    case Dtype::kFloat64:
      std::memcpy(&wide, at, sizeof(wide));
      return wide;
    case Dtype::kFloat32:
      std::memcpy(&single, at, sizeof(single));
      return single;
    case Dtype::kFloat16:
      std::memcpy(&half, at, sizeof(half));
      return testing::half_value(half);
    default:
      std::memcpy(&half, at, sizeof(half));
      return testing::bfloat16_value(half);
  }
}

// The value of the format that is nearest to `value`, of two the one whose last bit is 0.
double nearest(const Format& format, double value) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  int exponent = 0;
  std::frexp(value, &exponent);
  const double spacing = std::ldexp(1.0, std::max(exponent - 1, format.least) - format.mantissa);
  // Exact: a division by a power of two, and what is left has at most 53 bits.
  const double steps = value / spacing;
  double below = std::floor(steps);
  const double rest = steps - below;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(below, 2.0) != 0)) {
    below += 1;
  }
  const double rounded = std::copysign(below * spacing, value);
  return std::fabs(rounded) > format.largest
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

void put(Dtype dtype, double value, std::vector<std::byte>& out) {
  const auto append = [&](const auto& element) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&element);
    out.insert(out.end(), bytes, bytes + sizeof(element));
  };
  if (dtype == Dtype::kFloat64) {
    append(value);
  } else if (dtype == Dtype::kFloat32) {
    append(static_cast<float>(value));
  }
}

// Every 16-bit pattern, or wide values that are hard to round: ties, near ties, the ends of the
// normal and of the finite numbers of all formats, and many at random.
std::vector<std::byte> hard_values(Dtype dtype) {
  std::vector<std::byte> out;
  if (dtype_bytes(dtype) == 2) {
    for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      const auto* bytes = reinterpret_cast<const std::byte*>(&pattern);
      out.insert(out.end(), bytes, bytes + sizeof(pattern));
    }
    return out;
  }
  std::vector<double> values = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, 0.1, 1e300, 1e-300};
  for (const Format& format : kFormats) {
    for (const int exponent : {0, 1, -1, 15, format.least, format.least - 1, format.least - 3}) {
      const double unit = std::ldexp(1.0, std::max(exponent, format.least) - format.mantissa);
      for (const double steps : {0.0, 0.5, 1.0, 1.5, 2.5}) {
        for (const double beside : {0.0, std::ldexp(1.0, -40), -std::ldexp(1.0, -40)}) {
          values.push_back(std::ldexp(1.0, exponent) + unit * (steps + beside));
        }
      }
    }
    for (const double over : {-0.75, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0}) {
      values.push_back(format.largest + over * std::ldexp(format.largest, -format.mantissa - 1));
    }
    values.push_back(std::ldexp(1.0, format.least - format.mantissa - 1));  // half the smallest
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 200'000; ++i) {
    values.push_back(std::ldexp(1.0 + std::ldexp(static_cast<double>(random() >> 12), -52),
                                static_cast<int>(random() % 300) - 160));
  }
  for (const double value : values) {
    put(dtype, value, out);
    put(dtype, -value, out);
  }
  return out;
}

TEST(Convert, EveryValueIsRoundedOnceToTheNearest) {
  for (const Format& from : kFormats) {
    const std::vector<std::byte> in = hard_values(from.dtype);
    const auto numel = static_cast<std::int64_t>(in.size() / dtype_bytes(from.dtype));
    for (const Format& to : kFormats) {
      std::vector<std::byte> out(static_cast<std::size_t>(numel) * dtype_bytes(to.dtype));
      ASSERT_TRUE(detail::can_convert(from.dtype, to.dtype));
      detail::convert(from.dtype, in.data(), to.dtype, out.data(), numel);
      if (from.dtype == to.dtype) {
        EXPECT_TRUE(in == out) << dtype_name(to.dtype);
        continue;
      }
      int wrong = 0;
      for (std::int64_t i = 0; i < numel && wrong < 5; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double value = value_of(from.dtype, in.data() + at * dtype_bytes(from.dtype));
        const double found = value_of(to.dtype, out.data() + at * dtype_bytes(to.dtype));
        const double expected = nearest(to, value);
        const bool same = std::isnan(expected) ? std::isnan(found)
                                               : std::bit_cast<std::uint64_t>(expected) ==
                                                     std::bit_cast<std::uint64_t>(found);
        if (!same) {
          ++wrong;
          ADD_FAILURE() << std::hexfloat << dtype_name(from.dtype) << " " << value << " to "
                        << dtype_name(to.dtype) << ": expected " << expected << ", found " << found;
        }
      }
    }
  }
}

TEST(Convert, IntegersStayWhatTheyAre) {
  for (const Dtype integer :
       {Dtype::kInt32, Dtype::kInt64, Dtype::kUint8, Dtype::kInt8, Dtype::kInt16, Dtype::kBool}) {
    for (int other = 0; other < kDtypeCount; ++other) {
      EXPECT_EQ(detail::can_convert(integer, static_cast<Dtype>(other)),
                integer == static_cast<Dtype>(other));
      EXPECT_EQ(detail::can_convert(static_cast<Dtype>(other), integer),
                integer == static_cast<Dtype>(other));
    }
  }
}

// All orders of the dimensions of a shape.
std::vector<std::vector<std::int64_t>> all_orders(const std::vector<std::int64_t>& shape) {
  std::vector<std::size_t> order(shape.size());
  for (std::size_t d = 0; d < order.size(); ++d) {
    order[d] = d;
  }
  std::vector<std::vector<std::int64_t>> found = {{}};
  do {
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t next = 1;
    for (const std::size_t d : order) {
      strides[d] = next;
      next *= shape[d];
    }
    found.push_back(strides);
  } while (std::next_permutation(order.begin(), order.end()));
  return found;
}

TEST(Reorder, PutsEveryElementWhereTheStridesSay) {
  const std::vector<std::vector<std::int64_t>> shapes = {{2, 3, 5}, {1, 4, 1, 3}, {7}, {}, {1, 1}};
  for (const auto& shape : shapes) {
    StateTensor tensor{kWeightKind, "a", Dtype::kInt32, shape, {}};
    const auto numel = static_cast<std::size_t>(tensor.numel());
    for (const auto& from : all_orders(shape)) {
      for (const auto& to : all_orders(shape)) {
        const auto source = from.empty() ? row_strides(shape) : from;
        const auto target = to.empty() ? row_strides(shape) : to;
        std::vector<std::int32_t> in(numel);
        std::vector<std::int32_t> expected(numel);
        for (std::size_t i = 0; i < numel; ++i) {  // the elements' numbers, row by row
          auto rest = static_cast<std::int64_t>(i);
          std::int64_t at = 0;
          std::int64_t goes = 0;
          for (std::size_t d = shape.size(); d-- > 0;) {
            at += rest % shape[d] * source[d];
            goes += rest % shape[d] * target[d];
            rest /= shape[d];
          }
          in[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(i);
          expected[static_cast<std::size_t>(goes)] = static_cast<std::int32_t>(i);
        }
        EXPECT_EQ(detail::same_order(shape, from, to), in == expected);
        for (std::size_t begin = 0; begin <= numel; ++begin) {
          for (std::size_t end = begin; end <= numel; ++end) {
            std::vector<std::int32_t> out(end - begin);
            detail::reorder(shape,
                            sizeof(std::int32_t),
                            from,
                            reinterpret_cast<const std::byte*>(in.data()),
                            to,
                            {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)},
                            reinterpret_cast<std::byte*>(out.data()));
            ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin() + begin))
                << begin << " to " << end;
          }
        }
      }
    }
  }
}

// Through a checkpoint: another type and another order at once, in any split.
TEST(Convert, ACheckpointIsLoadedInAnotherTypeAndOrder) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> saved = {
      random_tensor(kWeightKind, "a", Dtype::kFloat32, {13, 7}, {1, 13}),
      random_tensor(kWeightKind, "b", Dtype::kFloat64, {2, 3, 5}),
      random_tensor(kWeightKind, "c", Dtype::kBFloat16, {101}),
      random_tensor(kWeightKind, "nothing", Dtype::kFloat32, {0, 2}, {2, 1})};
  testing::save_split(folder.path(), 1, saved, testing::dealt_split(5), 3);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(1);

  std::vector<MadeTensor> wanted = saved;
  const Dtype dtypes[] = {Dtype::kBFloat16, Dtype::kFloat16, Dtype::kFloat64, Dtype::kFloat16};
  const std::vector<std::int64_t> strides[] = {{}, {1, 2, 6}, {}, {7, 9}};
  for (std::size_t t = 0; t < wanted.size(); ++t) {
    MadeTensor& tensor = wanted[t];
    tensor.tensor.dtype = dtypes[t];
    tensor.tensor.strides = strides[t];
    tensor.bytes.assign(static_cast<std::size_t>(tensor.tensor.numel()) * dtype_bytes(dtypes[t]),
                        std::byte{0});
    const auto source = saved[t].tensor.strides.empty() ? row_strides(tensor.tensor.shape)
                                                        : saved[t].tensor.strides;
    const auto target = strides[t].empty() ? row_strides(tensor.tensor.shape) : strides[t];
    for (std::int64_t i = 0; i < tensor.tensor.numel(); ++i) {
      std::int64_t rest = i;
      std::int64_t at = 0;
      std::int64_t goes = 0;
      for (std::size_t d = tensor.tensor.shape.size(); d-- > 0;) {
        at += rest % tensor.tensor.shape[d] * source[d];
        goes += rest % tensor.tensor.shape[d] * target[d];
        rest /= tensor.tensor.shape[d];
      }
      const Dtype from = saved[t].tensor.dtype;
      const double value =
          value_of(from, saved[t].bytes.data() + static_cast<std::size_t>(at) * dtype_bytes(from));
      std::byte* to = tensor.bytes.data() + static_cast<std::size_t>(goes) * dtype_bytes(dtypes[t]);
      if (dtypes[t] == Dtype::kFloat64) {
        std::memcpy(to, &value, sizeof(value));
      } else {
        const std::uint16_t half = dtypes[t] == Dtype::kFloat16
                                       ? testing::nearest_half(static_cast<float>(value))
                                       : testing::nearest_bfloat16(static_cast<float>(value));
        std::memcpy(to, &half, sizeof(half));
      }
    }
  }
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(testing::load_split(checkpoint, wanted, testing::dealt_split(4), ranks),
              std::vector<std::string>());
    EXPECT_EQ(testing::load_split(checkpoint, wanted, testing::even_split, ranks),
              std::vector<std::string>());
  }
}

}  // namespace
}  // namespace trireme
