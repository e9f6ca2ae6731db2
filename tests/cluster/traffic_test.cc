// What crosses the network, by the counters of the machines' interfaces and by our own: as much as
// the formulas say, over the interfaces asked for, and nothing around them.

#include <cstdlib>

#include <gtest/gtest.h>

#include "support/machines.h"
#include "support/ranks.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::layout_machines;
using testing::Machines;

constexpr std::int64_t kNumel = 2 << 20;
constexpr std::int64_t kBytes = kNumel * 4;
// Announcements of a few operations, and the messages that found the world.
constexpr std::int64_t kSmallTalk = 64 << 10;
// Of Ethernet, IP and TCP, with acknowledgements of what comes in.
constexpr double kWrapping = 1.1;

class TrafficTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable()) {
      GTEST_SKIP() << *reason;
    }
    setenv("TRIREME_TEST_LAYOUT", "machines:2", 1);
  }

  struct Sent {
    std::int64_t eth0 = 0;
    std::int64_t eth1 = 0;
  };
  // What machine 0 sends while `size` ranks on two machines run `body`.
  static Sent sent_by(int size,
                      const std::vector<std::string>& interfaces,
                      int sum_group,
                      const std::function<void(World& world)>& body) {
    const Machines& machines = layout_machines();
    const std::int64_t eth0 = machines.bytes(0, 0).sent;
    const std::int64_t eth1 = machines.bytes(0, 1).sent;
    fork_world(size, body, [&](InitOptions& options) {
      options.interfaces = interfaces;
      options.sum_group = sum_group;
    });
    return {machines.bytes(0, 0).sent - eth0, machines.bytes(0, 1).sent - eth1};
  }
  static void expect_about(std::int64_t found, std::int64_t payload) {
    EXPECT_GE(found, payload);
    EXPECT_LE(static_cast<double>(found), static_cast<double>(payload) * kWrapping + kSmallTalk);
  }
  // What `body` makes this rank send to the other machine, announcements aside.
  static void expect_network_bytes(World& world,
                                   std::int64_t payload,
                                   const std::function<void()>& body) {
    const std::int64_t before = world.use().network_bytes;
    body();
    const std::int64_t found = world.use().network_bytes - before;
    EXPECT_GE(found, payload) << "rank " << world.rank();
    EXPECT_LE(found, payload + 4096) << "rank " << world.rank();
  }
};

void all_reduce_once(World& world) {
  std::vector<float> data(kNumel, 1);
  world.all_reduce(data).wait();
  EXPECT_EQ(data.back(), static_cast<float>(world.size()));
}

// With two ranks, each sends half of its input, and then its half of the result.
TEST_F(TrafficTest, GoesOverTheInterfaceAskedFor) {
  for (const bool second : {false, true}) {
    const Sent sent = sent_by(2, {second ? "eth1" : "eth0"}, 1, all_reduce_once);
    expect_about(second ? sent.eth1 : sent.eth0, kBytes);
    EXPECT_LT(second ? sent.eth0 : sent.eth1, kSmallTalk);
  }
}

TEST_F(TrafficTest, IsSharedByTwoInterfaces) {
  const Sent sent = sent_by(2, {"eth0", "eth1"}, 1, all_reduce_once);
  expect_about(sent.eth0, kBytes / 2);
  expect_about(sent.eth1, kBytes / 2);
}

// Each of the two ranks of a machine adds up half of the data inside, and exchanges that half with
// its like on the other machine, of which there is one: half there, half of the result.
TEST_F(TrafficTest, OfAHierarchicalAllReduceIsOnceTheDataForEachMachine) {
  const Sent sent = sent_by(4, {"eth0"}, 2, [](World& world) {
    expect_network_bytes(world, kBytes / 2, [&] { all_reduce_once(world); });
  });
  expect_about(sent.eth0, kBytes);
  EXPECT_LT(sent.eth1, kSmallTalk);
}

// In the order of group 1 every owner needs every rank's term: each rank sends the two ranks of the
// other machine their quarters, and its own quarter of the result.
TEST_F(TrafficTest, OfAFlatAllReduceIsTwiceThat) {
  const Sent sent = sent_by(4, {"eth0"}, 1, [](World& world) {
    expect_network_bytes(world, 2 * (kBytes / 4 + kBytes / 4), [&] { all_reduce_once(world); });
  });
  expect_about(sent.eth0, 2 * kBytes);
}

TEST_F(TrafficTest, OfAnAllGatherIsWhatAMachineHasOnce) {
  const Sent sent = sent_by(4, {"eth0"}, 2, [](World& world) {
    const std::vector<float> part(kNumel / 4, static_cast<float>(world.rank()));
    std::vector<float> whole(kNumel);
    expect_network_bytes(world, kBytes / 4, [&] { world.all_gather(part, whole).wait(); });
    EXPECT_EQ(whole.back(), 3);
  });
  expect_about(sent.eth0, kBytes / 2);
}

// The sums that machine 1's ranks own, made of both inputs here: half of the data.
TEST_F(TrafficTest, OfAHierarchicalReduceScatterIsHalfTheData) {
  const Sent sent = sent_by(4, {"eth0"}, 2, [](World& world) {
    const std::vector<float> data(kNumel, 1);
    std::vector<float> part(kNumel / 4);
    expect_network_bytes(world, kBytes / 4, [&] { world.reduce_scatter(data, part).wait(); });
    EXPECT_EQ(part.back(), 4);
  });
  expect_about(sent.eth0, kBytes / 2);
}

}  // namespace
}  // namespace trireme
