// Communicators that share a network: how they come, go and fail, over a transport in memory.

#include "comm/net/network.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "comm/net/net_backend.h"
#include "support/memory_transport.h"
#include "support/processes.h"

namespace trireme::detail {
namespace {

// Two ranks on two machines.
using trireme::testing::MemoryTransport;
using trireme::testing::Post;

class NetworkTest : public ::testing::Test {
 protected:
  NetworkTest() {
    const auto post = std::make_shared<Post>();
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<Member> members(2);
      members[1].rank = members[1].node = 1;
      transports_.push_back(std::make_shared<MemoryTransport>(rank, post));
      networks_.push_back(std::make_shared<Network>(transports_.back(), members));
    }
  }

  // Of both ranks, on channel `channel`; not opened.
  std::shared_ptr<OperationQueue> queue(int rank, std::uint32_t channel, const std::string& group) {
    NetOptions net;
    net.network = networks_[static_cast<std::size_t>(rank)];
    net.ranks = {0, 1};
    net.channel = std::make_shared<ChannelLease>(net.network, channel, group_number(group));
    QueueOptions options;
    options.timeout = std::chrono::seconds(10);
    options.spins = 0;
    options.quiet = true;
    options.flight_folder = FlightFolder::named(records_.path());
    options.group = group;
    return make_net_queue(net, options);
  }
  std::shared_ptr<OperationQueue> opened(int rank,
                                         std::uint32_t channel,
                                         const std::string& group) {
    auto made = queue(rank, channel, group);
    made->open();
    return made;
  }

  static CommError error_of(Work work) {
    try {
      work.wait();
    } catch (const CommError& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {CommError::Reason::kAborted, -1, ""};
  }

  trireme::testing::TemporaryFolder records_;
  std::vector<std::shared_ptr<MemoryTransport>> transports_;
  std::vector<std::shared_ptr<Network>> networks_;
};

// A group that could not be made is no communicator that others wait for: the world's end is still
// the end, and told.
TEST_F(NetworkTest, AGroupThatWasNotMadeHoldsNoGoodbyeBack) {
  const auto first = opened(0, 0, "");
  const auto second = opened(1, 0, "");
  queue(0, 2, "0.0").reset();
  first->close();
  const CommError error = error_of(second->issue({.kind = OpKind::kBarrier}));
  EXPECT_EQ(error.reason(), CommError::Reason::kPeerLeft) << error.what();
  EXPECT_EQ(error.peer(), 0) << error.what();
  second->close();
}

// Whoever waits for a rank in a communicator that it has closed is told, although it is still there
// in another, which goes on.
class LeavingOneTest : public NetworkTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(WorldFirst, LeavingOneTest, ::testing::Bool());

TEST_P(LeavingOneTest, IsTold) {
  const auto pair_of = [&](std::uint32_t channel, const std::string& group) {
    return std::vector{opened(0, channel, group), opened(1, channel, group)};
  };
  auto left = pair_of(0, "");
  auto kept = pair_of(2, "0.0");
  if (!GetParam()) {
    std::swap(left, kept);
  }
  left[0]->close();
  Work first = kept[0]->issue({.kind = OpKind::kBarrier});
  kept[1]->issue({.kind = OpKind::kBarrier}).wait();
  first.wait();
  const CommError error = error_of(left[1]->issue({.kind = OpKind::kBarrier}));
  EXPECT_EQ(error.reason(), CommError::Reason::kPeerLeft) << error.what();
  EXPECT_EQ(error.peer(), 0) << error.what();
  for (const auto& queue : {left[1], kept[0], kept[1]}) {
    queue->close();
  }
}

TEST_F(NetworkTest, ChannelsHaveOneHolderAndComeBack) {
  const GroupOffer before = networks_[0]->free_channels();
  const auto lease = std::make_shared<ChannelLease>(networks_[0], 2, 1);
  EXPECT_NE(networks_[0]->free_channels(), before);
  EXPECT_THROW(ChannelLease(networks_[0], 2, 2), ConfigError);
  EXPECT_NE(networks_[0]->free_channels(), before) << "that was not the second one's to give back";
  // A group has its channels as long as it lives.
  auto group = opened(0, 3, "0.0");
  const GroupOffer with_group = networks_[0]->free_channels();
  group->close();
  EXPECT_EQ(networks_[0]->free_channels(), with_group);
  group.reset();
  EXPECT_NE(networks_[0]->free_channels(), with_group);
}

// Channels are used again: what nobody has received of the group before is not the next one's.
TEST_F(NetworkTest, MessagesOfAGroupAreNotTheNextOnes) {
  const auto worlds = std::make_pair(opened(0, 0, ""), opened(1, 0, ""));
  for (const std::int64_t numel : {std::int64_t{3}, std::int64_t{10'000}}) {
    const auto groups = [&](const std::string& name) {
      return std::make_pair(opened(0, 2, name), opened(1, 2, name));
    };
    const auto message = [&](OperationQueue& queue, const std::vector<float>& data) {
      return queue.issue({.kind = OpKind::kSend,
                          .dtype = Dtype::kFloat32,
                          .peer = 1,
                          .input = data,
                          .total = numel});
    };
    const std::vector<float> old(static_cast<std::size_t>(numel), 1.0F);
    const std::vector<float> fresh(static_cast<std::size_t>(numel), 2.0F);
    {
      const auto [first, second] = groups("0.0");
      message(*first, old).wait();
      message(*first, old).wait();
      first->close();
      second->close();
    }
    const auto [first, second] = groups("1.0");
    message(*first, fresh).wait();
    std::vector<float> received(fresh.size());
    second
        ->issue({.kind = OpKind::kRecv,
                 .dtype = Dtype::kFloat32,
                 .peer = 0,
                 .output = received,
                 .total = numel})
        .wait();
    EXPECT_EQ(received, fresh);
    first->close();
    second->close();
  }
  worlds.first->close();
  worlds.second->close();
}

}  // namespace
}  // namespace trireme::detail
