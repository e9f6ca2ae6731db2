#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "settings/settings_cases.h"
#include "trireme/optim/schedule.h"

namespace trireme::deepspeed_one_cycle_test {
namespace {

using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::refusal_of_json;

struct Cycle {
  double lowest = 0;
  double highest = 0;
  int first = 0;
  int second = 0;
};

// The rate of an update, counted from 0, as DeepSpeed 0.19 computes it without decay. What this
// assumes: before the first update, its scheduler has set the rate to cycle_min_lr; it is advanced
// after each update, and takes the rate of the next one from the number of updates so far.
double deepspeed_rate(const Cycle& c, int step) {
  const double total = c.first + c.second;
  if (step >= total) {
    return c.lowest;
  }
  const double x = step / total;
  const double peak = c.first / total;
  const double scale = x <= peak ? x / peak : (x - 1) / (peak - 1);
  return c.lowest + (c.highest - c.lowest) * scale;
}

std::string file(const std::string& params, const std::string& others = "") {
  return R"({"optimizer": {"type": "SGD"}, "scheduler": {"type": "OneCycle", "params": {)" +
         params + "}}" + others + "}";
}

std::string file(const Cycle& c, const std::string& others = "") {
  return file(R"("cycle_min_lr": )" + std::to_string(c.lowest) + R"(, "cycle_max_lr": )" +
                  std::to_string(c.highest) + R"(, "cycle_first_step_size": )" +
                  std::to_string(c.first) + R"(, "cycle_second_step_size": )" +
                  std::to_string(c.second),
              others);
}

constexpr Cycle kCycle{.lowest = 0.001, .highest = 0.01, .first = 5, .second = 5};

TEST(DeepspeedOneCycle, IsCyclicWithTheSameRateInEveryStepOfACycle) {
  for (const int size : {1, 2, 5, 7}) {
    for (const Cycle& c : {Cycle{0.001, 0.01, size, size}, Cycle{0, 0.5, size, size}}) {
      const int steps = 2 * size + 1;
      const TrainSettings s = resolve(from(file(c, R"(, "steps": )" + std::to_string(steps))));
      ASSERT_EQ(s.schedule, ScheduleKind::kCyclic);
      EXPECT_EQ(s.warm_up, 0);
      const Schedule schedule = Schedule::cyclic(s.half_period, s.low_factor);
      for (int step = 0; step < steps; ++step) {
        EXPECT_DOUBLE_EQ(s.lr * schedule.factor(step), deepspeed_rate(c, step))
            << size << " " << step;
      }
      // Why a longer run is refused.
      EXPECT_GT(s.lr * schedule.factor(steps), deepspeed_rate(c, steps));
    }
  }
  // The other half is as long as the first where it is not given.
  EXPECT_EQ(from(file(R"("cycle_max_lr": 1, "cycle_first_step_size": 3)")).half_period, 3);
  EXPECT_EQ(from(file(R"("cycle_max_lr": 1)")).half_period, 2000);
}

TEST(DeepspeedOneCycle, RefusesARunLongerThanTheCycle) {
  EXPECT_EQ(refusal_of_json(file(kCycle, R"(, "steps": 11)")), "");
  expect_parts(refusal_of_json(file(kCycle, R"(, "steps": 12)")),
               {"OneCycle", "\"steps\": 11", "stays at cycle_min_lr", "rises again", "found 12"});
  const std::string decays = file(R"("cycle_max_lr": 1, "cycle_first_step_size": 5,
    "decay_step_size": 2, "decay_lr_rate": 0.1)");
  expect_parts(refusal_of_json(decays), {"\"steps\": 11", "decay_lr_rate", "no number of steps"});
}

TEST(DeepspeedOneCycle, SaysWhatIsAnotherInALongerRunWhereItsLengthIsNotKnown) {
  const auto said = [](const std::string& json, const std::set<std::string>& flags) {
    ::testing::internal::CaptureStderr();
    TrainSettings settings;
    apply_json(settings, json, "a.json", flags);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::vector<std::string> parts = {"10 steps", "longer run", "rises again"};
  expect_parts(said(file(kCycle), {}), parts);
  expect_parts(said(file(kCycle, R"(, "steps": 11)"), {"steps"}), parts);
  EXPECT_EQ(said(file(kCycle, R"(, "steps": 11)"), {}), "");
}

TEST(DeepspeedOneCycle, RefusesWhatCyclicDoesNotDo) {
  expect_parts(refusal_of_json(file(Cycle{0.001, 0.01, 100, 300})),
               {"cycle_second_step_size of 100", "found 300", "one_cycle"});
  expect_parts(refusal_of_json(file(R"("cycle_max_lr": 1, "cycle_second_stair_count": 4)")),
               {"cycle_second_stair_count", "found 4"});
  expect_parts(refusal_of_json(file(R"("cycle_max_lr": 1, "cycle_maximum": 4)")),
               {"unknown name", "cycle_maximum"});
}

// DeepSpeed does so for optimizers with betas, unless it is told not to.
TEST(DeepspeedOneCycle, RefusesToMoveBeta1) {
  for (const char* optimizer : {"Adam", "AdamW", "Lamb", "Lion", "SGD", "Adagrad", "RMSprop"}) {
    const auto refused = [&](const std::string& momentum) {
      return refusal_of_json(R"({"optimizer": {"type": ")" + std::string(optimizer) +
                             R"("}, "scheduler": {"type": "OneCycle", "params":
        {"cycle_max_lr": 1)" +
                             momentum + "}}}");
    };
    const bool has_betas = std::string("AdamW Lamb Lion").find(optimizer) != std::string::npos;
    for (const char* momentum : {"", R"(, "cycle_momentum": true)"}) {
      EXPECT_EQ(refused(momentum).find("cycle_momentum: expected false") != std::string::npos,
                has_betas)
          << optimizer;
    }
    EXPECT_EQ(refused(R"(, "cycle_momentum": false)"), "") << optimizer;
  }
}

}  // namespace
}  // namespace trireme::deepspeed_one_cycle_test
