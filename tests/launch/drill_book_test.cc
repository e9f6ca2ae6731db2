// What a drill's book makes of the news of launchers that are hit again and again.

#include "launch/drill_book.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;
using Kind = DrillNews::Kind;

constexpr std::int64_t kMillisecond = 1'000'000;

class Book : public ::testing::Test {
 protected:
  Book() { open(); }
  void open() {
    DrillBook::Hands hands;
    hands.objection = [](int, const DrillFault&) { return ""; };
    hands.part_of_world = [this](int machine) {
      return DrillBook::Hands::Part{epoch_, 2 * machine, 2};
    };
    hands.say = [](const std::string&) {};
    book_.emplace(DrillOptions{"kill-launcher;stop-launcher:300ms", 1, file()},
                  DrillBook::Place{.machine = 0, .job = "a job", .first_epoch = epoch_, .began = 0},
                  hands);
  }
  std::string file() const { return folder_.path() + "/drill.json"; }

  void tell(Kind kind, std::int64_t milliseconds, const std::function<void(DrillNews&)>& rest) {
    DrillNews news;
    news.kind = kind;
    news.nanoseconds = milliseconds * kMillisecond;
    news.epoch = epoch_;
    rest(news);
    book_->take(news);
  }
  void hit(DrillKind kind, std::int64_t at, int machine, std::int64_t step) {
    tell(Kind::kFault, at, [&](DrillNews& news) {
      news.fault = kind;
      news.phase = PulsePhase::kVault;
      news.struck = machine;
      news.step = step;
    });
  }
  void wake(std::int64_t at, int machine) {
    tell(Kind::kWoke, at, [&](DrillNews& news) { news.struck = machine; });
  }
  void lose(std::int64_t at, int machine) {
    tell(Kind::kGone, at, [&](DrillNews& news) {
      news.struck = machine;
      news.text = "gone";
    });
  }
  void blame(std::int64_t at, int rank) {
    tell(Kind::kBlames, at, [&](DrillNews& news) { news.peer = rank; });
  }
  void keep(std::int64_t at, std::int64_t steps) {
    tell(Kind::kKept, at, [&](DrillNews& news) { news.step = steps; });
  }
  Json faults() {
    book_->turn();
    return Json::parse(testing::read_file(file())).at("faults");
  }

  testing::TemporaryFolder folder_;
  std::int64_t epoch_ = 1;
  std::optional<DrillBook> book_;
};

// Before the next step, so that both are open; with and without the word that it had woken.
TEST_F(Book, ALauncherThatIsKilledAfterItWasStoppedIsLostByTheSecondAlone) {
  for (const bool word : {true, false}) {
    keep(1000, 22);
    hit(DrillKind::kStopLauncher, 1010, 2, 22);
    hit(DrillKind::kKillLauncher, 1100, 2, 22);  // it is still stopped
    if (word) {
      wake(1310, 2);
    }
    lose(1322, 2);
    blame(1323, 4);
    ++epoch_;
    keep(2100, 23);
    const Json all = faults();
    const Json& stop = all.at(all.size() - 2);
    const Json& kill = all.back();
    EXPECT_EQ(stop.at("outcome"), "recovered");
    EXPECT_TRUE(stop.at("noticed").empty()) << stop;
    EXPECT_EQ(stop.at("steps_again"), 0) << stop;
    EXPECT_DOUBLE_EQ(stop.at("next_step_seconds").get<double>(), 1.09);
    EXPECT_EQ(kill.at("outcome"), "recovered");
    EXPECT_EQ(kill.at("noticed").size(), 2U) << kill;
    EXPECT_EQ(kill.at("steps_again"), 1) << kill;
  }
}

// It led, and leads again when it is back: no other launcher had the book to write it into.
TEST_F(Book, ALauncherThatComesBackToItsBookNoticesThatItWasKilled) {
  keep(1000, 22);
  hit(DrillKind::kKillLauncher, 1010, 0, 22);
  faults();  // written
  ++epoch_;
  open();
  keep(drill_clock() / kMillisecond + 1000, 23);
  const Json fault = faults().at(0);
  EXPECT_EQ(fault.at("outcome"), "recovered");
  ASSERT_EQ(fault.at("noticed").size(), 1U) << fault;
  EXPECT_EQ(fault.at("noticed").at(0).at("who"), "launcher of machine 0");
}

// As long as the others had no patience for; whatever is to hit it next finds nobody.
TEST_F(Book, ALauncherThatIsLostWhileItIsStoppedIsLostByThat) {
  keep(1000, 22);
  hit(DrillKind::kStopLauncher, 1010, 2, 22);
  lose(1200, 2);
  ++epoch_;
  keep(1500, 23);
  const Json fault = faults().at(0);
  EXPECT_EQ(fault.at("noticed").at(0).at("how"), "gone");
  EXPECT_EQ(fault.at("steps_again"), 1);
}

}  // namespace
}  // namespace trireme::detail
