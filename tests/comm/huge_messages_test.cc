// Messages of a little more than 2^31 bytes, in one call: lengths that do not fit an int, in what
// carries them and in what cuts them.

#include <cstdint>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "support/ranks.h"

namespace trireme {
namespace {

constexpr std::int64_t kBoundary = std::int64_t{1} << 31;
constexpr std::int64_t kNumel = kBoundary + (1 << 20) + 13;

// What rank `rank` has at `i`: of every byte of `i`, so that what is moved by 2^8, 2^16, 2^24 or
// 2^31 bytes is another value.
std::uint8_t value_at(int rank, std::int64_t i) {
  const auto bits = static_cast<std::uint64_t>(i);
  return static_cast<std::uint8_t>(bits + 3 * (bits >> 8) + 5 * (bits >> 16) + 7 * (bits >> 24) +
                                   11 * static_cast<std::uint64_t>(rank));
}

std::uint8_t* bytes_of(const Span& data) {
  return reinterpret_cast<std::uint8_t*>(data.bytes());
}

void fill(const Span& data, int rank) {
  std::uint8_t* to = bytes_of(data);
  for (std::int64_t i = 0; i < kNumel; ++i) {
    to[i] = value_at(rank, i);
  }
}

template <class Expected>
void expect(const Span& data, const char* what, const Expected& expected) {
  const std::uint8_t* found = bytes_of(data);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < kNumel; ++i) {
    wrong += found[i] != expected(i) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << what << ": bytes that differ";
  for (const std::int64_t i : {std::int64_t{0}, kBoundary - 1, kBoundary, kNumel - 1}) {
    EXPECT_EQ(static_cast<int>(found[i]), static_cast<int>(expected(i)))
        << what << ", byte " << i << " of " << kNumel;
  }
}

void check(World& world, const Span& data) {
  const int rank = world.rank();
  const auto of_zero = [](std::int64_t i) { return value_at(0, i); };
  const auto of_one = [](std::int64_t i) { return value_at(1, i); };
  fill(data, rank);
  world.broadcast(data, 0).wait();
  expect(data, "broadcast", of_zero);

  fill(data, rank);
  if (rank == 1) {
    world.send(data, 0).wait();
  } else {
    world.recv(data, 1).wait();
    expect(data, "recv", of_one);
  }

  fill(data, rank);
  world.all_reduce(data).wait();
  expect(data, "all_reduce", [](std::int64_t i) {
    return static_cast<std::uint8_t>(value_at(0, i) + value_at(1, i));
  });
}

void be_patient(InitOptions& options) {
  options.timeout = std::chrono::seconds(300);
}

TEST(HugeMessages, OfAnyMemoryArriveWhole) {
  testing::fork_world(
      2,
      [](World& world) {
        const device::Buffer memory(kNumel);
        check(world, Span(memory.data(), kNumel, Dtype::kUint8));
      },
      be_patient);
}

TEST(HugeMessages, OfSharedBuffersArriveWhole) {
  testing::fork_world(
      2,
      [](World& world) {
        const SharedBuffer buffer = world.allocate(kNumel);
        check(world, buffer.span(Dtype::kUint8, kNumel));
      },
      be_patient);
}

}  // namespace
}  // namespace trireme
