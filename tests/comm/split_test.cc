// Groups of ranks: who is in them, what their collectives compute, and how they end. Expected
// values are formulas of the ranks' numbers in the world.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;
using testing::spawn_world;
using Reason = CommError::Reason;

constexpr std::int64_t kSmall = 7;
constexpr std::int64_t kLarge = 200'000;

// Element i of what a rank of the world contributes.
std::int64_t value(int world_rank, std::int64_t i) {
  return (world_rank + 1) * 1'000'003LL + 17 * i;
}

std::vector<std::int64_t> values(int world_rank, std::int64_t numel) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < numel; ++i) {
    result.push_back(value(world_rank, i));
  }
  return result;
}

// The members that `split` must give a rank: same color, by key, then by rank.
struct Choice {
  std::function<int(int rank)> color;
  std::function<int(int rank)> key;
};
std::vector<int> members_of(const Choice& choice, int rank, int size) {
  std::vector<std::pair<int, int>> found;
  for (int other = 0; other < size; ++other) {
    if (choice.color(other) == choice.color(rank)) {
      found.emplace_back(choice.key(other), other);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<int> members;
  for (const auto& [key, other] : found) {
    members.push_back(other);
  }
  return members;
}

// Every collective of a group, against formulas. `members`: by rank of the group, their ranks in
// the world.
class GroupCheck {
 public:
  GroupCheck(Communicator& group, std::vector<int> members, int world_rank)
      : group_(group), members_(std::move(members)), self_(world_rank) {}

  void run() {
    ASSERT_EQ(group_.size(), static_cast<int>(members_.size()));
    ASSERT_EQ(members_[static_cast<std::size_t>(group_.rank())], self_);
    for (const std::int64_t numel : {kSmall, kLarge}) {
      reductions(numel);
      moves(numel);
      messages(numel);
    }
    group_.barrier().wait();
  }

 private:
  std::int64_t sum(std::int64_t i) const {
    std::int64_t total = 0;
    for (const int member : members_) {
      total += value(member, i);
    }
    return total;
  }

  void reductions(std::int64_t numel) {
    std::vector<std::int64_t> data = values(self_, numel);
    group_.all_reduce(data).wait();
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < numel; ++i) {
      expected.push_back(sum(i));
    }
    EXPECT_EQ(data, expected) << "all_reduce of " << numel;
    const Range part = even_range(numel, group_.size(), group_.rank());
    std::vector<std::int64_t> own(static_cast<std::size_t>(part.size()));
    group_.reduce_scatter(values(self_, numel), own).wait();
    EXPECT_TRUE(std::equal(own.begin(), own.end(), expected.begin() + part.begin))
        << "reduce_scatter of " << numel;
    const int root = group_.size() - 1;
    data = values(self_, numel);
    group_.reduce(data, root).wait();
    EXPECT_EQ(data, group_.rank() == root ? expected : values(self_, numel)) << "reduce";
  }

  void moves(std::int64_t numel) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(numel) * members_.size());
    group_.all_gather(values(self_, numel), all).wait();
    std::vector<std::int64_t> expected;
    for (const int member : members_) {
      const auto theirs = values(member, numel);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    EXPECT_EQ(all, expected) << "all_gather of " << numel;
    for (int root = 0; root < group_.size(); ++root) {
      auto data = values(self_, numel);
      group_.broadcast(data, root).wait();
      EXPECT_EQ(data, values(members_[static_cast<std::size_t>(root)], numel)) << "broadcast";
    }
    // Rank r gets element r of everyone's blocks.
    std::vector<std::int64_t> to_all;
    for (int peer = 0; peer < group_.size(); ++peer) {
      to_all.insert(to_all.end(), static_cast<std::size_t>(numel), value(self_, peer));
    }
    std::vector<std::int64_t> from_all(to_all.size());
    group_.all_to_all(to_all, from_all).wait();
    for (std::size_t i = 0; i < from_all.size(); ++i) {
      ASSERT_EQ(from_all[i], value(members_[i / static_cast<std::size_t>(numel)], group_.rank()))
          << "all_to_all";
    }
  }

  void messages(std::int64_t numel) {
    const int next = (group_.rank() + 1) % group_.size();
    const int previous = (group_.rank() + group_.size() - 1) % group_.size();
    if (next == group_.rank()) {
      return;
    }
    const auto mine = values(self_, numel);
    std::vector<std::int64_t> theirs(mine.size());
    Work recv = group_.recv(theirs, previous, 5);
    Work send = group_.send(mine, next, 5);
    recv.wait();
    send.wait();
    EXPECT_EQ(theirs, values(members_[static_cast<std::size_t>(previous)], numel)) << "messages";
  }

  Communicator& group_;
  std::vector<int> members_;
  int self_;
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {[](int) { return 3; }, [](int) { return 0; }},           // everyone
      {[](int) { return 0; }, [](int rank) { return -rank; }},  // backwards
      {[](int rank) { return rank % 2; }, [](int) { return 1; }},
      {[](int rank) { return rank / 2; }, [](int rank) { return rank % 2 == 0 ? 9 : 2; }},
      {[](int rank) { return rank % 3 == 2 ? 1 : 0; }, [](int) { return 0; }},
      {[](int rank) { return rank; }, [](int) { return 0; }},      // each alone
      {[](int) { return 7; }, [](int rank) { return rank % 2; }},  // machines' ranks mixed up
  };
  return all;
}

void check_all_choices(World& world) {
  for (const Choice& choice : choices()) {
    const auto group = world.split(choice.color(world.rank()), choice.key(world.rank()));
    ASSERT_TRUE(group);
    GroupCheck(*group, members_of(choice, world.rank(), world.size()), world.rank()).run();
  }
  // The world is as it was.
  std::vector<int> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  GroupCheck(world, everyone, world.rank()).run();
}

class SplitTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, SplitTest, ::testing::Values(1, 2, 3, 4, 6));

TEST_P(SplitTest, GroupsComputeAmongTheirOwn) {
  fork_world(GetParam(), check_all_choices);
}

TEST(Split, GroupsOfThreadsComputeAmongTheirOwn) {
  spawn_world(4, check_all_choices);
}

// Groups of groups of groups, all alive at once.
TEST(Split, GroupsCanBeSplitAgain) {
  fork_world(6, [](World& world) {
    const int rank = world.rank();
    // {0, 1, 2, 3}, {4, 5}; then by evenness, backwards; then each alone.
    const auto first = world.split(rank / 4);
    const auto second = first->split(rank % 2, -rank);
    const auto third = second->split(second->rank());
    const std::vector<std::vector<int>> firsts = {{0, 1, 2, 3}, {4, 5}};
    const std::vector<std::vector<int>> seconds = {{2, 0}, {3, 1}, {4}, {5}};
    const auto holds = [&](const std::vector<std::vector<int>>& groups) {
      return *std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& group) {
        return std::find(group.begin(), group.end(), rank) != group.end();
      });
    };
    GroupCheck(*third, {rank}, rank).run();
    GroupCheck(*second, holds(seconds), rank).run();
    GroupCheck(*first, holds(firsts), rank).run();
    GroupCheck(*second, holds(seconds), rank).run();
    // Of the machine, too.
    Communicator& machine = world.machine();
    const auto half = machine.split(machine.rank() % 2);
    EXPECT_EQ(half->size(), (machine.size() + 1 - machine.rank() % 2) / 2);
    std::vector<std::int64_t> count = {1};
    half->all_reduce(count).wait();
    EXPECT_EQ(count[0], half->size());
  });
}

TEST(Split, WhoGivesNoColorGetsNoGroup) {
  fork_world(4, [](World& world) {
    const bool out = world.rank() == 1;
    const auto group = world.split(out ? Communicator::kNoGroup : 5);
    ASSERT_EQ(group == nullptr, out);
    if (group) {
      GroupCheck(*group, {0, 2, 3}, world.rank()).run();
    }
    world.barrier().wait();
    const std::string message = message_of<ConfigError>([&] { world.split(-2).reset(); });
    EXPECT_NE(message.find("found -2"), std::string::npos) << message;
    world.barrier().wait();
  });
}

// In the order of the group's ranks, whatever they are in the world; and with pairs first.
TEST(Split, SumsAreOneChainInTheOrderOfTheGroup) {
  fork_world(4, [](World& world) {
    constexpr std::int64_t kNumel = 1003;
    const auto element = [](int rank, std::int64_t i) {
      return static_cast<float>(1.0 / (3.0 + rank * 7919 + static_cast<double>(i))) *
             (rank % 2 == 0 ? 1.0F : -1000.0F);
    };
    const std::vector<int> members = {3, 2, 1, 0};
    for (const int pairs : {1, 2}) {
      const auto group = world.split(0, -world.rank(), pairs);
      EXPECT_EQ(group->sum_group(), pairs);
      std::vector<float> data;
      std::vector<float> expected;
      for (std::int64_t i = 0; i < kNumel; ++i) {
        data.push_back(element(world.rank(), i));
        const float a = element(3, i);
        const float b = element(2, i);
        const float c = element(1, i);
        const float d = element(0, i);
        expected.push_back(pairs == 1 ? ((a + b) + c) + d : (a + b) + (c + d));
      }
      group->all_reduce(data).wait();
      EXPECT_EQ(data, expected) << "groups of " << pairs;
    }
    const auto inherits = world.split(0);
    EXPECT_EQ(inherits->sum_group(), world.sum_group());
    // All ranks of a group say the same.
    EXPECT_THROW(world.split(0, 0, world.rank() + 1), ConfigError);
    world.barrier().wait();
  });
}

// Rank 0 waits in its group first, rank 1 in the world: each has to go on with what the other one
// waits for. The data is too long to be sent ahead.
TEST(Split, OperationsOfOtherCommunicatorsGoOn) {
  fork_world(4, [](World& world) {
    const auto group = world.split(world.rank() / 2);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::int64_t> all = values(world.rank(), kLarge);
      std::vector<std::int64_t> some = values(world.rank(), kLarge);
      Work of_world = world.all_reduce(all);
      if (world.rank() % 2 == 0) {
        group->all_reduce(some).wait();
        of_world.wait();
      } else {
        of_world.wait();
        group->all_reduce(some).wait();
      }
      const int first = world.rank() / 2 * 2;
      for (const std::int64_t i : {std::int64_t{0}, kLarge / 2, kLarge - 1}) {
        EXPECT_EQ(all[static_cast<std::size_t>(i)],
                  value(0, i) + value(1, i) + value(2, i) + value(3, i));
        EXPECT_EQ(some[static_cast<std::size_t>(i)], value(first, i) + value(first + 1, i));
      }
    }
  });
}

TEST(Split, GroupsHaveMemoryOfTheirOwn) {
  fork_world(4, [](World& world) {
    const auto group = world.split(world.rank() % 2, -world.rank());
    const SharedBuffer buffer = group->allocate(kLarge * sizeof(std::int64_t));
    const Span span = buffer.span(Dtype::kInt64, kLarge);
    auto* data = reinterpret_cast<std::int64_t*>(buffer.data());
    for (std::int64_t i = 0; i < kLarge; ++i) {
      data[i] = value(world.rank(), i);
    }
    group->barrier().wait();
    if (group->one_machine()) {
      const int peer = 1 - group->rank();
      const int in_world = (world.rank() + 2) % 4;
      EXPECT_EQ(reinterpret_cast<const std::int64_t*>(buffer.peer(peer))[99], value(in_world, 99));
      group->barrier().wait();
    }
    group->all_reduce(span).wait();
    const int even = world.rank() % 2;
    EXPECT_EQ(data[kLarge - 1], value(even, kLarge - 1) + value(even + 2, kLarge - 1));
    // A machine's part of the group.
    std::vector<std::int64_t> count = {1};
    group->machine().all_reduce(count).wait();
    EXPECT_EQ(count[0], group->machine().size());
  });
}

TEST(Split, GroupsOutliveTheirWorld) {
  const std::string job = testing::unique_job();
  if (testing::in_external_layout()) {
    GTEST_SKIP() << testing::kOtherSize << "its own";
  }
  testing::fork_ranks(4, [&](int rank) {
    auto world = init(testing::options_for(job, rank, 4));
    const auto group = world->split(rank % 2);
    world->barrier().wait();
    world.reset();
    GroupCheck(*group, {rank % 2, rank % 2 + 2}, rank).run();
    const auto again = group->split(0, -rank);
    GroupCheck(*again, {rank % 2 + 2, rank % 2}, rank).run();
  });
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// Many, one after another: what one of them had is free again.
TEST(Split, GroupsCanBeMadeAndDropped) {
  fork_world(3, [](World& world) {
    std::ptrdiff_t before = 0;
    for (int round = 0; round < 20; ++round) {
      if (round % 2 == 0 && testing::in_shared_memory()) {  // in the same groups
        before = round == 0 ? open_files() : before;
        EXPECT_EQ(open_files(), before) << "round " << round;
      }
      const auto group = world.split((world.rank() + round) % 2, -world.rank());
      std::vector<std::int64_t> count = {1};
      group->all_reduce(count).wait();
      EXPECT_EQ(count[0], group->size());
    }
  });
}

// Nor is anything left in the way that one of them has sent and nobody received.
TEST(Split, MessagesOfAGroupAreNotTheNextOnes) {
  fork_world(2, [](World& world) {
    if (const auto group = world.split(0); world.rank() == 0) {
      group->send(values(5, kSmall), 1).wait();
    }
    const auto group = world.split(0);
    const auto sent = values(6, kSmall);
    std::vector<std::int64_t> received(sent.size());
    if (world.rank() == 0) {
      group->send(sent, 1).wait();
    } else {
      group->recv(received, 0).wait();
      EXPECT_EQ(received, sent);
    }
  });
}

// --- how groups end

std::optional<CommError> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return std::nullopt;
}

// Rank 3 of the world, rank 0 of its group.
TEST(Split, ADeadRankIsNamedInItsGroup) {
  fork_world(4, [](World& world) {
    const auto group = world.split(world.rank() % 2, -world.rank());
    group->barrier().wait();
    world.barrier().wait();  // the other group has been made, too
    if (world.rank() == 3) {
      _exit(0);
    }
    const auto error = error_of([&] {
      for (;;) {
        group->barrier().wait();
      }
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kPeerDied) << error->what();
    EXPECT_NE(std::string(error->what()).find("rank 3 (pid "), std::string::npos) << error->what();
    // Those of the other group know it by its number in the world alone.
    EXPECT_EQ(error->peer(), world.rank() == 1 ? 0 : -1) << error->what();
  });
}

// One that dies while its group is being made is missed by the others at once, not at the deadline.
TEST(Split, ADeadRankIsNamedWhileItsGroupIsMade) {
  fork_world(4, [](World& world) {
    world.barrier().wait();
    if (world.rank() == 2) {
      // As `split` would: the others have its choice, and it never comes to the meeting.
      std::vector<std::uint8_t> mine(528, 0xFF);
      std::fill_n(mine.begin(), 16, 0);
      std::vector<std::uint8_t> all(mine.size() * 4);
      world.all_gather(mine, all).wait();
      _exit(0);
    }
    const auto error = error_of([&] {
      // Over a network it is missed in the first operation of the group.
      const auto group = world.split(0);
      for (;;) {
        group->barrier().wait();
      }
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kPeerDied) << error->what();
    EXPECT_NE(std::string(error->what()).find("rank 2 (pid "), std::string::npos) << error->what();
  });
}

TEST(Split, WhatEndsTheWorldEndsItsGroups) {
  fork_world(4, [](World& world) {
    const auto group = world.split(world.rank() / 2)->split(0, -world.rank());
    if (world.rank() == 0) {
      world.barrier().wait();
      world.abort("the reason of this test");
      return;
    }
    const auto error = error_of([&] {
      world.barrier().wait();  // all have their groups; some may be here still when 0 aborts
      std::vector<float> data(1);
      group->recv(data, 1 - group->rank()).wait();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kAborted) << error->what();
    EXPECT_NE(std::string(error->what()).find("the reason of this test"), std::string::npos)
        << error->what();
  });
}

// A rank that is done with a group is missed there at once, not at the deadline, and not elsewhere.
TEST(Split, WhoDropsAGroupHasLeftIt) {
  fork_world(4, [](World& world) {
    auto group = world.split(world.rank() / 2);
    group->barrier().wait();
    if (world.rank() == 0) {
      group.reset();
    }
    world.barrier().wait();
    if (world.rank() == 1) {
      const auto error = error_of([&] { group->barrier().wait(); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->reason(), Reason::kPeerLeft) << error->what();
      EXPECT_EQ(error->peer(), 0) << error->what();
    }
    try {
      world.barrier().wait();  // nobody leaves the world before
    } catch (const CommError& error) {
      EXPECT_FALSE(world.one_machine()) << error.what();  // a network ends with a group
    }
  });
}

TEST(Split, DifferentCallsInAGroupAreNamed) {
  fork_world(4, [](World& world) {
    std::vector<float> data(10);
    std::shared_ptr<Communicator> group;
    const auto error = error_of([&] {
      group = world.split(world.rank() / 2);  // the others may have failed before it is made
      if (world.rank() == 2) {
        group->broadcast(data, 0).wait();
      }
      for (;;) {
        group->all_reduce(data).wait();
        if (world.rank() < 2) {
          world.barrier().wait();  // ends with the world, or when the others leave
        }
      }
    });
    ASSERT_TRUE(error);
    if (world.rank() >= 2) {
      const std::string message = error->what();
      EXPECT_EQ(error->reason(), Reason::kMismatch) << message;
      EXPECT_NE(message.find("broadcast("), std::string::npos) << message;
      EXPECT_NE(message.find("all_reduce("), std::string::npos) << message;
      EXPECT_NE(message.find("of a group of 2"), std::string::npos) << message;
      const int mine = world.rank();
      const int other = 5 - mine;
      const auto names = [&](int finder, int found) {
        return message.find(detail::concat("rank ", finder, " and rank ", found, " (pid")) !=
                   std::string::npos &&
               message.find(detail::concat("rank ", finder, ": #")) != std::string::npos &&
               message.find(detail::concat("rank ", found, ": #")) != std::string::npos;
      };
      EXPECT_TRUE(names(mine, other) || names(other, mine)) << message;
    }
  });
}

}  // namespace
}  // namespace trireme
