// Why an epoch of an elastic job ends, as the ranks of all machines are told.

#include "launch/epochs.h"

#include <thread>

#include <gtest/gtest.h>
#include <signal.h>

namespace trireme::detail {
namespace {

// Two machines with two ranks each: nobody runs.
class EpochEnds : public ::testing::Test {
 protected:
  EpochEnds() {
    options_.least = 1;
    options_.most = 8;
    epochs_.emplace(options_,
                    Milliseconds(1000),
                    Epochs::Hands{.say = [](const std::string&) {},
                                  .end = [this](const EpochEnd& end) { ends_.push_back(end); },
                                  .begin = [](const EpochOrder&) {}});
    for (const int machine : {0, 1}) {
      epochs_->add({.name = "machine " + std::to_string(machine), .capacity = 4, .listener = ""},
                   2);
      status(machine, /*asks=*/false);
    }
  }
  void status(int machine, bool asks) {
    MachineStatus now{.epoch = epochs_->epoch(), .members = 2};
    now.asks = asks;
    epochs_->take(machine, now);
  }

  ElasticOptions options_;
  std::optional<Epochs> epochs_;
  std::vector<EpochEnd> ends_;
};

TEST_F(EpochEnds, NameWhoWasLostAlsoWhereAnotherRankWasFasterToSayIt) {
  status(1, /*asks=*/true);
  EXPECT_EQ(epochs_->turn(), "");
  EXPECT_TRUE(ends_.empty());
  JobEvent failure;
  failure.rank = 0;
  failure.number = SIGKILL;
  EXPECT_TRUE(epochs_->take(0, {failure}));
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_TRUE(ends_[0].lost);
  EXPECT_NE(ends_[0].why.find("machine 0: rank 0 of 4"), std::string::npos) << ends_[0].why;
  EXPECT_EQ(epochs_->turn(), "");
  EXPECT_EQ(ends_.size(), 1U);
}

// A connection may break between ranks that all live.
TEST_F(EpochEnds, AreToldAlsoWhereNobodyKnowsTheCause) {
  status(1, /*asks=*/true);
  for (int i = 0; i < 1000 && ends_.empty(); ++i) {
    EXPECT_EQ(epochs_->turn(), "");
    std::this_thread::sleep_for(Milliseconds(10));
  }
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_TRUE(ends_[0].lost);
  EXPECT_EQ(ends_[0].why, "a rank has lost another");
}

}  // namespace
}  // namespace trireme::detail
