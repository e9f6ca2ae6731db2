// The layout of the ranks' control memory, and a world of many ranks in it.

#include "comm/shm/control.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/index.h"

namespace trireme {
namespace {

using detail::Control;
using detail::index;

constexpr std::size_t kKibibyte = 1 << 10;
constexpr std::size_t kMebibyte = 1 << 20;
constexpr std::size_t kStage = 512 << 10;  // the default

TEST(Control, IsSmallForManyRanks) {
  EXPECT_LE(Control::bytes(128, kStage), 128 * 3 * kMebibyte);
  EXPECT_LE(Control::bytes(8, kStage), 8 * 3 * kMebibyte);
}

// Only where an algorithm has a name are there lanes.
TEST(Control, HasLanesOfABoundedLength) {
  for (const int ranks : {1, 2, 8, 64, 256}) {
    const std::size_t lane = detail::lane_bytes_for(ranks);
    EXPECT_LE(lane, 128 * kKibibyte);
    EXPECT_GE(lane, 8 * kKibibyte);
    EXPECT_LE(Control::bytes(ranks, kStage, lane) - Control::bytes(ranks, kStage),
              index(ranks) * 7 * kMebibyte);
  }
}

// a + b n + c n n: what grows with the square of the ranks is c.
TEST(Control, HardlyGrowsWithTheSquareOfTheRanks) {
  constexpr std::size_t kRanks = 256;
  const std::size_t square =
      Control::bytes(2 * kRanks, kStage) - 2 * Control::bytes(kRanks, kStage);
  EXPECT_LE(square / (2 * kRanks * kRanks), 5 * kKibibyte / 2);
}

// Every part lies inside, in its place, and none in another's.
TEST(Control, PartsDoNotOverlap) {
  constexpr int kRanks = 5;
  constexpr std::size_t kSmallStage = 8 * kKibibyte;
  struct Part {
    std::size_t begin;
    std::size_t bytes;
    std::size_t alignment;
  };
  std::vector<Part> parts;
  constexpr std::size_t kLane = 4 * kKibibyte;
  const std::size_t bytes = Control::bytes(kRanks, kSmallStage, kLane);
  // Only addresses are asked for; what is there is never touched.
  std::vector<std::byte> memory(bytes + 4096);
  std::byte* base = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096);
  const Control control(base, kRanks, kSmallStage, kLane);
  const auto add = [&](const void* at, std::size_t length, std::size_t alignment) {
    parts.push_back(
        {index(static_cast<int>(static_cast<const std::byte*>(at) - base)), length, alignment});
  };
  add(&control.header(), sizeof(detail::ControlHeader), 64);
  for (int rank = 0; rank < kRanks; ++rank) {
    add(&control.rank(rank), sizeof(detail::RankBlock), 64);
    for (std::uint32_t i = 0; i < detail::kSlots; ++i) {
      detail::Slot& slot = control.slot(rank, i);
      add(&slot, sizeof(slot), 64);
      add(control.counts(slot), kRanks * sizeof(std::int64_t), 8);
      add(control.eager(slot), detail::kEagerBytes, 64);
    }
    for (int peer = 0; peer < kRanks; ++peer) {
      add(&control.mailbox(rank, peer), sizeof(detail::Mailbox), 64);
      for (std::uint32_t number = 0; number < detail::kLanes; ++number) {
        detail::Lane& lane = control.lane(rank, peer, number);
        add(&lane, sizeof(lane), 64);
        add(control.ring(lane), kLane, 64);
      }
    }
    for (std::uint32_t slot = 0; slot < detail::kOutboxSlots + kRanks; ++slot) {
      add(&control.outbox_flag(rank, slot), sizeof(detail::OutboxFlag), 64);
      add(control.outbox(rank, slot), Control::outbox_bytes(slot), 64);
    }
    add(control.stage(rank, 0), kSmallStage, 64);
    add(control.stage(rank, 1), kSmallStage, 64);
  }
  std::sort(
      parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::size_t end = 0;
  for (const Part& part : parts) {
    EXPECT_GE(part.begin, end) << "a part begins inside the one before it";
    EXPECT_EQ(part.begin % part.alignment, 0U);
    end = part.begin + part.bytes;
  }
  EXPECT_LE(end, bytes);
}

std::int64_t value(int from, int to, std::size_t i) {
  return static_cast<std::int64_t>(i) * 31 + from * 1009 + to;
}

// Many more ranks than processors: every pair exchanges a message, some longer than the outbox, all
// at once; then collectives of all kinds of memory.
TEST(Control, ServesManyRanks) {
  testing::fork_world(26, [](World& world) {
    const int me = world.rank();
    const auto size = index(world.size());
    const auto length = [](int from, int to) {
      const std::size_t lengths[] = {0, 1, 129, 8'000, 20'001};
      return lengths[index(from * 7 + to) % 5];
    };
    std::vector<std::vector<std::int64_t>> outgoing(size);
    std::vector<std::vector<std::int64_t>> incoming(size);
    std::vector<Work> works;
    for (int peer = 0; peer < world.size(); ++peer) {
      auto& out = outgoing[index(peer)];
      for (std::size_t i = 0; i < length(me, peer); ++i) {
        out.push_back(value(me, peer, i));
      }
      incoming[index(peer)].resize(length(peer, me));
      works.push_back(world.send(out, peer));
    }
    for (int peer = world.size() - 1; peer >= 0; --peer) {
      works.push_back(world.recv(incoming[index(peer)], peer));
    }
    for (Work& work : works) {
      work.wait();
    }
    for (int peer = 0; peer < world.size(); ++peer) {
      const auto& in = incoming[index(peer)];
      for (std::size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(in[i], value(peer, me, i)) << "from rank " << peer << ", element " << i;
      }
    }
    const std::int64_t ranks = world.size();
    for (const std::size_t numel : {std::size_t{3}, std::size_t{70'001}}) {
      std::vector<std::int64_t> sums(numel, me + 1);
      world.all_reduce(sums).wait();
      EXPECT_EQ(sums, std::vector<std::int64_t>(numel, ranks * (ranks + 1) / 2));
      std::vector<std::int64_t> all(size * numel);
      world.all_gather(std::vector<std::int64_t>(numel, me), all).wait();
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<std::int64_t>(i / numel));
      }
    }
  });
}

}  // namespace
}  // namespace trireme
