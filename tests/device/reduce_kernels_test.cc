#include "device/host/reduce_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "support/reference.h"

namespace trireme {
namespace {

using testing::Bytes;

Bytes reduce_bytes(Dtype dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  std::vector<const std::byte*> from;
  for (const Bytes& input : inputs) {
    from.push_back(reinterpret_cast<const std::byte*>(input.data()));
  }
  Bytes output(inputs[0].size());
  std::byte* const to = reinterpret_cast<std::byte*>(output.data());
  device::reduce({dtype,
                  op,
                  static_cast<std::int64_t>(inputs.size()),
                  from,
                  {&to, 1},
                  output.size() / dtype_bytes(dtype)});
  return output;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(ReduceKernels, ReadEveryHalfAndBFloat16) {
  // One input and a maximum with itself leave the value as it is, through float32 and back.
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    const Bytes input = bytes_of(all);
    const Bytes output = reduce_bytes(dtype, ReduceOp::kMax, {input, input});
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::uint16_t found = 0;
      std::memcpy(&found, output.data() + 2 * i, 2);
      const bool nan = dtype == Dtype::kFloat16 ? std::isnan(testing::half_value(all[i]))
                                                : std::isnan(testing::bfloat16_value(all[i]));
      if (!nan) {
        ASSERT_EQ(found, all[i]) << dtype_name(dtype);
      } else {
        // Still a NaN of the same sign.
        ASSERT_EQ(found & 0x8000, all[i] & 0x8000);
        ASSERT_TRUE(dtype == Dtype::kFloat16 ? std::isnan(testing::half_value(found))
                                             : std::isnan(testing::bfloat16_value(found)));
      }
    }
  }
}

TEST(ReduceKernels, RoundSumsOfHalvesOnceToTheNearest) {
  // Every half plus a few others: the sums hit ties, subnormals, overflow.
  for (const int other : {0x0001, 0x8001, 0x03FF, 0x0400, 0x1400, 0x3C00, 0x3C01, 0x7BFF, 0xFBFF}) {
    for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
      std::vector<std::uint16_t> a;
      for (int bits = 0; bits < 65536; ++bits) {
        const auto value = static_cast<std::uint16_t>(bits);
        const bool finite =
            dtype == Dtype::kFloat16 ? (value & 0x7C00) != 0x7C00 : (value & 0x7F80) != 0x7F80;
        if (finite) {
          a.push_back(value);
        }
      }
      const std::vector<std::uint16_t> b(a.size(), static_cast<std::uint16_t>(other));
      const std::vector<Bytes> inputs = {bytes_of(a), bytes_of(b)};
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        ASSERT_EQ(reduce_bytes(dtype, op, inputs), testing::reduce_in_order(dtype, op, inputs))
            << dtype_name(dtype) << " " << other;
      }
    }
  }
}

TEST(ReduceKernels, GiveTheSameBitsWhereverARangeIsCut) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < 5; ++rank) {
      inputs.push_back(testing::make_input(dtype, 301, rank));
    }
    const Bytes whole = reduce_bytes(dtype, ReduceOp::kSum, inputs);
    const std::size_t element = dtype_bytes(dtype);
    for (std::size_t cut = 0; cut <= 301; ++cut) {
      std::vector<Bytes> left;
      std::vector<Bytes> right;
      for (const Bytes& input : inputs) {
        const auto middle = input.begin() + static_cast<std::ptrdiff_t>(cut * element);
        left.emplace_back(input.begin(), middle);
        right.emplace_back(middle, input.end());
      }
      Bytes joined = reduce_bytes(dtype, ReduceOp::kSum, left);
      const Bytes rest = reduce_bytes(dtype, ReduceOp::kSum, right);
      joined.insert(joined.end(), rest.begin(), rest.end());
      ASSERT_EQ(joined, whole) << dtype_name(dtype) << " cut at " << cut;
    }
  }
}

TEST(ReduceKernels, LetNanWinMinimumAndMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Bytes> inputs = {bytes_of<float>({nan, 1, 2, infinity, -0.0F}),
                                     bytes_of<float>({1, nan, 3, 1, 0.0F}),
                                     bytes_of<float>({2, 2, 1, -infinity, 0.0F})};
  const Bytes low = reduce_bytes(Dtype::kFloat32, ReduceOp::kMin, inputs);
  const Bytes high = reduce_bytes(Dtype::kFloat32, ReduceOp::kMax, inputs);
  EXPECT_EQ(low, testing::reduce_in_order(Dtype::kFloat32, ReduceOp::kMin, inputs));
  EXPECT_EQ(high, testing::reduce_in_order(Dtype::kFloat32, ReduceOp::kMax, inputs));
  float first = 0;
  std::memcpy(&first, low.data(), sizeof(first));
  EXPECT_TRUE(std::isnan(first));
}

TEST(ReduceKernels, WrapIntegerSumsAndDivideWideAverages) {
  const std::vector<Bytes> inputs = {bytes_of<std::uint8_t>({200, 255, 7}),
                                     bytes_of<std::uint8_t>({100, 255, 8})};
  EXPECT_EQ(reduce_bytes(Dtype::kUint8, ReduceOp::kSum, inputs),
            bytes_of<std::uint8_t>({44, 254, 15}));
  EXPECT_EQ(reduce_bytes(Dtype::kUint8, ReduceOp::kAverage, inputs),
            bytes_of<std::uint8_t>({150, 255, 7}));
  const std::vector<Bytes> small = {bytes_of<std::int8_t>({100, -128, -7}),
                                    bytes_of<std::int8_t>({100, -128, 8})};
  EXPECT_EQ(reduce_bytes(Dtype::kInt8, ReduceOp::kSum, small), bytes_of<std::int8_t>({-56, 0, 1}));
  EXPECT_EQ(reduce_bytes(Dtype::kInt8, ReduceOp::kAverage, small),
            bytes_of<std::int8_t>({100, -128, 0}));
  EXPECT_EQ(reduce_bytes(Dtype::kInt8, ReduceOp::kMin, small),
            bytes_of<std::int8_t>({100, -128, -7}));
  const std::vector<Bytes> middle = {bytes_of<std::int16_t>({30'000, -7, 255}),
                                     bytes_of<std::int16_t>({30'000, 6, 1})};
  EXPECT_EQ(reduce_bytes(Dtype::kInt16, ReduceOp::kSum, middle),
            bytes_of<std::int16_t>({-5'536, -1, 256}));
  EXPECT_EQ(reduce_bytes(Dtype::kInt16, ReduceOp::kMax, middle),
            bytes_of<std::int16_t>({30'000, 6, 255}));
  const std::vector<Bytes> flags = {bytes_of<std::uint8_t>({0, 0, 1, 1}),
                                    bytes_of<std::uint8_t>({0, 1, 0, 1})};
  EXPECT_EQ(reduce_bytes(Dtype::kBool, ReduceOp::kMin, flags),
            bytes_of<std::uint8_t>({0, 0, 0, 1}));
  EXPECT_EQ(reduce_bytes(Dtype::kBool, ReduceOp::kMax, flags),
            bytes_of<std::uint8_t>({0, 1, 1, 1}));
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce_bytes(Dtype::kInt32,
                         ReduceOp::kAverage,
                         {bytes_of<std::int32_t>({most}), bytes_of<std::int32_t>({most})}),
            bytes_of<std::int32_t>({most}));
}

}  // namespace
}  // namespace trireme
