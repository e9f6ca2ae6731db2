#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/buffer.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::Buffer;
using testing::Bytes;

const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

TEST(Buffer, IsZeroAlignedToAPageAndMoves) {
  for (const std::size_t bytes : {std::size_t{1}, kPage - 1, kPage + 1, std::size_t{5} << 20}) {
    Buffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kPage, 0U);
    EXPECT_TRUE(std::all_of(
        buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(buffer.device(), Device{});
    buffer.data()[bytes - 1] = std::byte{9};
    Buffer other = std::move(buffer);
    EXPECT_EQ(other.size_bytes(), bytes);
    EXPECT_EQ(other.data()[bytes - 1], std::byte{9});
  }
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer().size_bytes(), 0U);
}

TEST(Buffer, ThatCannotBeHadIsAMemoryError) {
  const std::string message =
      testing::message_of<MemoryError>([] { Buffer(std::size_t{1} << 60); });
  EXPECT_NE(message.find("memory of 1152921504606846976 bytes was requested and refused"),
            std::string::npos)
      << message;
}

TEST(Buffer, GivesSpansOfWhatItHas) {
  const Buffer buffer(100);
  const Span span = buffer.span(Dtype::kFloat32, 20, 20);
  EXPECT_EQ(span.bytes(), buffer.data() + 20);
  EXPECT_EQ(span.numel(), 20);
  EXPECT_THROW(buffer.span(Dtype::kFloat32, 21, 20), InternalError);
}

TEST(Span, HasADeviceAndParts) {
  auto owner = std::make_shared<std::vector<double>>(10);
  const Device gpu{DeviceType::kCuda, 2};
  const Span span(owner->data(), 10, Dtype::kFloat64, owner, gpu);
  EXPECT_EQ(span.device(), gpu);
  EXPECT_EQ(device_name(span.device()), "cuda:2");
  EXPECT_EQ(device_name(Span(*owner).device()), "cpu");
  const Span part = span.part(3, 4);
  EXPECT_EQ(part.bytes(), reinterpret_cast<std::byte*>(owner->data() + 3));
  EXPECT_EQ(part.numel(), 4);
  EXPECT_EQ(part.dtype(), Dtype::kFloat64);
  EXPECT_EQ(part.device(), gpu);
  EXPECT_EQ(part.owner(), owner);
  const ConstSpan whole = span;
  EXPECT_EQ(whole.part(9, 1).bytes(), reinterpret_cast<std::byte*>(owner->data() + 9));
  EXPECT_EQ(sizeof(Span), 2 * sizeof(void*) + 8 + sizeof(std::shared_ptr<void>))
      << "the device is where there was padding";
}

// Two ranks, the second a process of its own: each gives its part its pages and writes to it.
TEST(SharedMemory, IsOneRunOfTheRanksParts) {
  device::Driver& driver = device::driver({});
  const device::Parts first = device::separate_parts(0, 2, 3 * kPage - 5, kPage);
  const device::Parts second = device::separate_parts(1, 2, 3 * kPage - 5, kPage);
  const std::vector<FileDescriptor> offers = driver.offer(first);
  ASSERT_EQ(offers.size(), 1U);
  EXPECT_TRUE(driver.offer(second).empty()) << "rank 0's is for all";
  const auto mapping = driver.map(first, offers);
  ASSERT_EQ(mapping->size_bytes(), 6 * kPage);
  const std::byte* read_only = mapping->read_only();
  const pid_t child = fork();
  if (child == 0) {
    const auto theirs = driver.map(second, offers);
    std::memset(theirs->data() + 3 * kPage, 7, 3 * kPage);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(mapping->data()[3 * kPage - 1], std::byte{0});
  EXPECT_EQ(mapping->data()[3 * kPage], std::byte{7});
  EXPECT_EQ(read_only[6 * kPage - 1], std::byte{7});
  EXPECT_NE(read_only, mapping->data());
  EXPECT_DEATH(*const_cast<std::byte*>(read_only) = std::byte{1}, "");
}

TEST(SharedMemory, ThatCannotBeHadIsAMemoryError) {
  EXPECT_THROW(device::driver({}).offer(device::separate_parts(0, 2, std::size_t{1} << 50, kPage)),
               MemoryError);
}

// --- copies

constexpr Dtype kAll[] = {Dtype::kFloat32,
                          Dtype::kFloat64,
                          Dtype::kFloat16,
                          Dtype::kBFloat16,
                          Dtype::kInt32,
                          Dtype::kInt64,
                          Dtype::kUint8,
                          Dtype::kInt8,
                          Dtype::kInt16,
                          Dtype::kBool};

TEST(Copy, MovesEveryTypeAtEveryLengthAndPlace) {
  for (const Dtype dtype : kAll) {
    const std::size_t element = dtype_bytes(dtype);
    for (std::int64_t numel = 0; numel <= 70; ++numel) {
      for (const std::size_t shift : {0, 1, 3}) {
        const Bytes from = testing::make_input(dtype, numel + 4, 1);
        Bytes to(from.size(), 0xA5);
        Bytes expected = to;
        const std::size_t bytes = static_cast<std::size_t>(numel) * element;
        std::copy_n(from.data() + shift * element, bytes, expected.data() + element);
        for (const bool looks : {false, true}) {
          Bytes copied = to;
          device::NotFinite flag = 0;
          device::host().copy({copied.data() + element, numel, dtype},
                              {from.data() + shift * element, numel, dtype},
                              looks ? &flag : nullptr);
          ASSERT_EQ(copied, expected) << dtype_name(dtype) << " " << numel;
          ASSERT_EQ(flag, 0U) << dtype_name(dtype) << " " << numel;
        }
      }
    }
  }
}

TEST(Copy, OfNothingAndOntoItselfDoesNothing) {
  device::NotFinite flag = 0;
  device::host().copy({nullptr, 0, Dtype::kFloat32}, {nullptr, 0, Dtype::kFloat32}, &flag);
  device::host().clear({nullptr, 0, Dtype::kFloat32});
  std::vector<float> values = {1, 2, std::numeric_limits<float>::infinity()};
  device::host().copy(Span(values).part(0, 2), Span(values).part(0, 2), &flag);
  EXPECT_EQ(flag, 0U);
  device::host().copy(values, values, &flag);
  EXPECT_EQ(flag, 1U);
  EXPECT_EQ(values[1], 2);
}

// An element of each type that is not finite, in its bits.
std::vector<std::uint64_t> not_finite_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001};
    case Dtype::kFloat32:
      return {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001};
    case Dtype::kFloat16:
      return {0x7C00, 0xFC00, 0x7E00, 0x7C01};
    default:
      return {0x7F80, 0xFF80, 0x7FC0, 0x7F81};
  }
}

TEST(Copy, FindsWhatIsNotFiniteWhereverItIs) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    const std::size_t element = dtype_bytes(dtype);
    for (const std::int64_t numel : {1, 15, 16, 17, 67}) {
      for (std::int64_t at = 0; at < numel; ++at) {
        for (const std::uint64_t bits : not_finite_bits(dtype)) {
          Bytes from = testing::make_input(dtype, numel, 2);
          std::memcpy(from.data() + static_cast<std::size_t>(at) * element, &bits, element);
          Bytes to(from.size());
          device::NotFinite copied = 0;
          device::NotFinite looked = 0;
          device::NotFinite before = 0;
          device::host().copy({to.data(), numel, dtype}, {from.data(), numel, dtype}, &copied);
          device::host().check_finite({from.data(), numel, dtype}, &looked);
          device::host().check_finite({from.data(), at, dtype}, &before);
          ASSERT_EQ(copied, 1U) << dtype_name(dtype) << " " << numel << " " << at;
          ASSERT_EQ(looked, 1U) << dtype_name(dtype) << " " << numel << " " << at;
          ASSERT_EQ(before, 0U) << dtype_name(dtype) << " " << numel << " " << at;
          ASSERT_EQ(to, from) << "what is not finite is copied as it is";
        }
      }
    }
  }
}

TEST(Copy, WidensEvery16BitFloat) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  std::vector<float> wide(all.size());
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    device::host().copy(wide, {all.data(), 65536, dtype});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double value = dtype == Dtype::kFloat16
                               ? testing::half_value(all[i])
                               : static_cast<double>(testing::bfloat16_value(all[i]));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(wide[i], value) << i;
        ASSERT_EQ(std::signbit(wide[i]), std::signbit(value)) << i;
      }
    }
  }
}

TEST(Copy, RoundsToTheNearest16BitFloat) {
  const Bytes random = testing::make_input(Dtype::kFloat32, 5003, 3);
  std::vector<float> values(5003);
  std::memcpy(values.data(), random.data(), random.size());
  // Ties, the largest, the smallest, what is beyond them.
  for (const float special : {1.00048828125F,
                              1.00146484375F,
                              65504.0F,
                              65519.9F,
                              65520.0F,
                              1e-8F,
                              5.9604645e-8F,
                              2.9802322e-8F,
                              1.00390625F,
                              3.4e38F,
                              0.0F,
                              -0.0F}) {
    values.push_back(special);
    values.push_back(-special);
  }
  const auto numel = static_cast<std::int64_t>(values.size());
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    std::vector<std::uint16_t> rounded(values.size());
    device::host().copy({rounded.data(), numel, dtype}, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded[i],
                dtype == Dtype::kFloat16 ? testing::nearest_half(values[i])
                                         : testing::nearest_bfloat16(values[i]))
          << values[i];
    }
  }
}

TEST(Copy, RefusesOtherConversionsAndLengths) {
  std::vector<float> floats(4);
  std::vector<std::int32_t> integers(4);
  std::vector<double> doubles(4);
  EXPECT_THROW(device::host().copy(integers, floats), InternalError);
  EXPECT_THROW(device::host().copy(floats, doubles), InternalError);
  EXPECT_THROW(device::host().copy(Span(floats).part(0, 3), floats), InternalError);
}

TEST(Clear, WritesZerosAndNothingElse) {
  for (std::int64_t numel = 0; numel < 40; ++numel) {
    Bytes bytes(48, 0xFF);
    device::host().clear({bytes.data() + 2, numel, Dtype::kUint8});
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool cleared = i >= 2 && i < 2 + static_cast<std::size_t>(numel);
      ASSERT_EQ(bytes[i], cleared ? 0 : 0xFF);
    }
  }
}

}  // namespace
}  // namespace trireme
