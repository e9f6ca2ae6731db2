// What an owner records, with what a kill leaves of it.

#include "server/arrival_record.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/foreign_locale.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Act = ClockTable::Act;
using testing::read_file;

const std::vector<std::string> kRun = {"optimizer sgd", "bound 3"};
const std::string kBegin = "trireme arrivals 1\noptimizer sgd\nbound 3\n--\n";

Act apply(int worker, std::int64_t clock) {
  return {Act::Kind::kApply, worker, clock};
}
Act answer(int worker, std::int64_t clock) {
  return {Act::Kind::kAnswer, worker, clock};
}
std::vector<Act> step(int worker, std::int64_t clock) {
  return {apply(worker, clock), answer(worker, clock)};
}

class ArrivalRecordTest : public ::testing::Test {
 protected:
  std::string file() const { return folder_.path() + "/rank-2.txt"; }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
  Arrivals read(std::int64_t from = 0, int workers = 2) const {
    return Arrivals::read(folder_.path(), 2, kRun, from, workers);
  }
  std::string refusal(std::int64_t from = 0) const {
    try {
      read(from);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  testing::TemporaryFolder folder_;
};

// Where numbers are written as 1.200, and only here.
TEST_F(ArrivalRecordTest, HasNumbersAsEverybodyReadsThem) {
  {
    const testing::ForeignLocale foreign;
    ArrivalRecord record(folder_.path(), 2, kRun);
    for (const Act& act : step(0, 1200)) {
      record.add(act);
    }
    record.flush();
    EXPECT_EQ(read(0, 1).acts.back().clock, 1200);
  }
  EXPECT_EQ(read_file(file()), kBegin + "all 0\napply 0 1200\nanswer 0 1200\n");
  write(kBegin + "all 0\napply 0 1.200\n");
  EXPECT_NE(refusal().find("apply 0 1.200"), std::string::npos) << refusal();
}

// A worker without more data does not end the others' steps; one that is missing does.
TEST_F(ArrivalRecordTest, GoesOnAfterThoseThatHaveLeft) {
  ArrivalRecord record(folder_.path(), 2, kRun);
  for (int clock = 0; clock < 3; ++clock) {
    for (const Act& act : step(0, clock)) {
      record.add(act);
    }
    if (clock == 0) {
      for (const Act& act : step(1, clock)) {
        record.add(act);
      }
    }
  }
  record.flush();
  EXPECT_EQ(read().steps, 1);
  record.leaves(1);
  record.flush();
  EXPECT_EQ(read().steps, 3);
  EXPECT_EQ(read().acts.size(), 8U);
  record.leaves(0);
  record.flush();
  EXPECT_EQ(read().steps, 3);
}

TEST_F(ArrivalRecordTest, WhatWasDoneIsOnItsWayAtOnce) {
  ArrivalRecord record(folder_.path(), 2, kRun);
  EXPECT_FALSE(std::filesystem::exists(file()));
  for (const Act& act : step(1, 0)) {
    record.add(act);
  }
  record.flush();
  EXPECT_EQ(read_file(file()), kBegin + "all 0\napply 1 0\nanswer 1 0\n");
}

// Killed after a save in step 1, it goes on from there; what it did after that counts once.
TEST_F(ArrivalRecordTest, WhatCameAfterACheckpointIsForgotten) {
  const std::string kept = kBegin + "all 0\napply 0 0\nanswer 0 0\nall 1\n";
  for (const char* later : {"", "apply 1 1\nanswer 1 1\nall 2\n", "apply 0 1\nansw"}) {
    write(kept + later);
    {
      ArrivalRecord record(folder_.path(), 2, kRun);
      record.all_at(1);
      record.go_on_from(1);
      record.add(apply(0, 1));
    }
    EXPECT_EQ(read_file(file()), kept + "apply 0 1\n") << later;
  }
}

TEST_F(ArrivalRecordTest, AnotherRunBeginsAnother) {
  for (const char* text : {"trireme arrivals 1\noptimizer adam\nbound 3\n--\nall 0\nall 1\n",
                           "trireme arrivals 1\noptimizer sgd\nbound 3\n--\nall 0\nall 12\n",
                           "trireme arrivals 1\noptimizer sgd\nbound 3\n--\nall 0\nall 1"}) {
    write(text);
    ArrivalRecord(folder_.path(), 2, kRun).all_at(1);
    EXPECT_EQ(read_file(file()), kBegin + "all 1\n");
  }
}

TEST_F(ArrivalRecordTest, ALineThatWasBeingWrittenIsNone) {
  write(kBegin + "all 0\napply 1 0\nanswer 1 0\napply 0 0\nanswer 0 0\napply 1 1\napply 0 1");
  const Arrivals arrivals = read();
  EXPECT_EQ(arrivals.acts,
            (std::vector<Act>{apply(1, 0), answer(1, 0), apply(0, 0), answer(0, 0), apply(1, 1)}));
  EXPECT_EQ(arrivals.steps, 1);
}

TEST_F(ArrivalRecordTest, BeginningsAreWhereAllWentOn) {
  write(kBegin + "all 0\napply 1 0\nanswer 1 0\nall 1\nall 1\napply 1 1\nanswer 1 1\nall 2\n");
  EXPECT_EQ(read(0, 2).steps, 0);
  const Arrivals all = read(0, 2);
  EXPECT_EQ(all.beginnings, (std::vector<std::int64_t>{0, 1, 1, 2}));
  EXPECT_EQ(all.first, 0);
  const Arrivals later = read(1, 2);
  EXPECT_TRUE(later.begins);
  EXPECT_EQ(later.acts, step(1, 1));
  EXPECT_EQ(later.beginnings, (std::vector<std::int64_t>{1, 1, 2}));
  EXPECT_FALSE(read(3, 2).begins);
}

TEST_F(ArrivalRecordTest, WhatNotAllHaveIsLeftOut) {
  Arrivals arrivals;
  // Rank 0 is ahead: its step 1 comes before the answer to rank 1's step 0.
  arrivals.acts = {apply(0, 0), answer(0, 0), apply(1, 0), apply(0, 1), answer(1, 0)};
  arrivals.beginnings = {0, 1, 2};
  Arrivals whole = arrivals;
  EXPECT_TRUE(whole.end_with(1)) << "nobody computes with the last answers";
  EXPECT_EQ(whole.acts, (std::vector<Act>{apply(0, 0), answer(0, 0), apply(1, 0), answer(1, 0)}));
  EXPECT_EQ(whole.beginnings, (std::vector<std::int64_t>{0, 1}));
  Arrivals same = whole;
  EXPECT_TRUE(same.end_with(1));
  EXPECT_EQ(same.acts, whole.acts);
  // Rank 1's gradients would meet other weights, and its step 1 would be computed with others.
  arrivals.acts = {apply(0, 0), answer(0, 0), apply(0, 1), apply(1, 0), answer(1, 0)};
  EXPECT_FALSE(arrivals.end_with(1));
  arrivals.acts = {apply(0, 0), apply(1, 0), apply(0, 2), answer(1, 0), apply(1, 1), answer(1, 1)};
  EXPECT_FALSE(arrivals.end_with(2));
}

TEST_F(ArrivalRecordTest, WhatIsNoRecordIsNamed) {
  EXPECT_NE(refusal().find("is not a record of arrivals"), std::string::npos);
  for (const char* line : {"apply 2 0", "apply -1 0", "answer 0", "all", "all 1 2", "gone 1 1"}) {
    write(kBegin + "all 0\n" + line + "\n");
    EXPECT_NE(refusal().find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace trireme::detail
