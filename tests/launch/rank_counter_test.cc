// Who was lost, has left, has joined or was only started again: what the launcher that decides
// tells each new world of an elastic job.

#include "launch/rank_counter.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "launch/epochs.h"

namespace trireme::detail {
namespace {

// A job whose worlds are begun by hand: nobody runs.
class Counts : public ::testing::Test {
 protected:
  Counts() {
    options_.least = 1;
    options_.most = 8;
  }
  void begin_job(const std::vector<int>& ranks) {
    epochs_.emplace(options_,
                    Milliseconds(1000),
                    Epochs::Hands{.say = [](const std::string&) {},
                                  .end = [](const EpochEnd&) {},
                                  .begin = [this](const EpochOrder& order) { order_ = order; }});
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      epochs_->add({.name = "machine " + std::to_string(i), .capacity = 8, .listener = ""},
                   ranks[i]);
      status(static_cast<int>(i), ranks[i], false);
    }
  }
  // So many ranks of a machine run, and wait for the next world or do not.
  void status(int machine, int members, bool wait, const Reached& reached = {}) {
    MachineStatus now{.epoch = epochs_->epoch(), .members = members};
    now.asks = wait && members > 0;
    now.ready = wait || members == 0;
    now.keeps = true;
    now.reached = reached;
    epochs_->take(machine, now);
  }
  // A rank of a machine ends, which has so many left.
  void lose(int machine, int left, int blamed = -1) {
    status(machine, left, false);
    JobEvent failure;
    failure.rank = 5;
    failure.number = blamed >= 0 ? 3 << 8 : SIGKILL;
    failure.blamed = blamed;
    EXPECT_TRUE(epochs_->take(machine, {failure}));
  }
  void expect_told(std::int64_t times, std::int64_t lost, std::int64_t left, std::int64_t joined) {
    order_.reset();
    EXPECT_EQ(epochs_->turn(), "");
    ASSERT_TRUE(order_);
    EXPECT_EQ(order_->counts.times, times);
    EXPECT_EQ(order_->counts.lost, lost);
    EXPECT_EQ(order_->counts.left, left);
    EXPECT_EQ(order_->counts.joined, joined);
  }

  ElasticOptions options_;
  std::optional<Epochs> epochs_;
  std::optional<EpochOrder> order_;
};

TEST_F(Counts, ALossAndOneThatIsStartedInItsPlace) {
  options_.restarts = 1;
  begin_job({3});
  lose(0, 2);
  status(0, 2, true);
  expect_told(1, 1, 0, 1);
  lose(0, 2);  // no restart is left
  status(0, 2, true);
  expect_told(2, 2, 0, 1);
}

// Programs that end when another is lost are neither lost nor new.
TEST_F(Counts, OnesThatEndBecauseOfALossAreOnlyStartedAgain) {
  options_.restarts = 1;
  begin_job({3});
  lose(0, 2);
  lose(0, 1, /*blamed=*/4);
  lose(0, 0, /*blamed=*/4);
  expect_told(1, 1, 0, 1);
  EXPECT_EQ(order_->starts, std::vector<int>{3});
}

TEST_F(Counts, AKillThatFollowsALeaveAtOnce) {
  begin_job({3});
  EXPECT_EQ(epochs_->scale(1, "a test").substr(0, 10), "going from");
  lose(0, 2);
  status(0, 2, true);
  expect_told(1, 1, 1, 0);
  // And where the loss alone makes them as few as are wanted.
  begin_job({3});
  EXPECT_EQ(epochs_->scale(2, "a test").substr(0, 10), "going from");
  lose(0, 2);
  status(0, 2, true);
  expect_told(1, 1, 0, 0);
}

TEST_F(Counts, MachinesThatAreLostLeaveAndCome) {
  begin_job({2, 2, 3});
  epochs_->machine_leaves(1);
  epochs_->machine_lost(2, "is gone");
  status(0, 2, true);
  status(1, 2, true);
  expect_told(1, 3, 2, 0);
  epochs_->machine_lost(1, "is gone");  // it has left
  epochs_->machine_came(2, {.name = "machine 2", .capacity = 3, .listener = ""});
  EXPECT_EQ(epochs_->turn(), "");
  status(0, 2, true);
  expect_told(2, 3, 2, 3);
  EXPECT_EQ(order_->ranks, (std::vector<int>{2, 0, 3}));
}

// A rank of a machine that leaves is killed: it has not left.
TEST_F(Counts, ALossOnAMachineThatLeaves) {
  begin_job({2, 2});
  epochs_->machine_leaves(1);
  lose(1, 1);
  status(1, 1, true);
  status(0, 2, true);
  expect_told(1, 1, 1, 0);
}

TEST_F(Counts, TellHowFarAnyRankHasCome) {
  begin_job({1, 1, 1});
  epochs_->machine_leaves(2);
  status(0, 1, true, {7, 2});
  status(1, 1, true, {8, 1});
  status(2, 1, true, {6, 0});
  expect_told(1, 0, 1, 0);
  EXPECT_EQ(order_->reached, (Reached{8, 2}));
}

EpochOrder world(std::int64_t epoch, const std::vector<int>& ranks, const RankCounts& counts) {
  EpochOrder order;
  order.epoch = epoch;
  order.ranks = ranks;
  order.starts = ranks;
  order.counts = counts;
  return order;
}

EpochOrder counted_after(RankCounter& counter, const std::vector<int>& ranks) {
  EpochOrder order = world(1'000'000, ranks, {});
  counter.count(std::vector<RankCounter::Part>(ranks.size()), order);
  return order;
}

TEST(CountsOfAnotherLeader, RanksThatItsMachinesHaveEndedAreOnlyStartedAgain) {
  const EpochOrder last = world(4, {2, 2, 3}, {3, 5, 6, 7});
  RankCounter killed;
  killed.take_over();
  killed.know(1, last);
  killed.know(0, world(3, {2, 2, 0}, {}));  // it did not hear of the last one
  killed.know(2, last);
  EXPECT_EQ(counted_after(killed, {0, 2, 3}).counts, (RankCounts{4, 7, 6, 7}));

  RankCounter left;
  left.take_over();
  left.know(1, last);
  left.know(2, last);
  left.leader_has_left(0, {.lost = 1, .left = 0, .ranks = {2, 2, 2}});
  EXPECT_EQ(counted_after(left, {0, 2, 2}).counts, (RankCounts{4, 6, 8, 7}));

  RankCounter back;  // the machine that led is here again, with a launcher that was started again
  back.take_over();
  back.know(1, last);
  back.know(2, last);
  EXPECT_EQ(counted_after(back, {2, 2, 3}).counts, (RankCounts{4, 7, 6, 9}));

  RankCounter first;
  first.take_over();
  EXPECT_EQ(counted_after(first, {2, 2, 3}).counts, RankCounts{});
}

}  // namespace
}  // namespace trireme::detail
