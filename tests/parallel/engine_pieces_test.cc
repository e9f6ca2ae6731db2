// The pieces of an engine that need no ranks: phases, dealing, threads, updates.

#include <atomic>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parallel/engine/step_phase.h"
#include "parallel/engine/thread_pool.h"
#include "parallel/engine/update.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/shard/micro_batches.h"

namespace trireme::detail::engine_pieces_test {
namespace {

using testing::message_of;

constexpr Phase kPhases[] = {Phase::kBetweenSteps,
                             Phase::kGathered,
                             Phase::kBackward,
                             Phase::kBackwardDone,
                             Phase::kAccumulating,
                             Phase::kSummed,
                             Phase::kUpdating,
                             Phase::kBackwardFailed,
                             Phase::kHalfLoaded,
                             Phase::kUnwrapped};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// The shortest way to a phase, by the transitions there are.
std::vector<Phase> way_to(Phase phase) {
  std::vector<std::vector<Phase>> ways = {{Phase::kBetweenSteps}};
  std::set<Phase> seen = {Phase::kBetweenSteps};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (ways[i].back() == phase) {
      return ways[i];
    }
    for (const Phase next : kPhases) {
      if (StepPhase::follows(next, ways[i].back()) && seen.insert(next).second) {
        ways.push_back(ways[i]);
        ways.back().push_back(next);
      }
    }
  }
  return {};
}

TEST(StepPhase, FollowsAStepOfSeveralMicroBatches) {
  StepPhase phase;
  for (int step = 0; step < 2; ++step) {
    for (int k = 0; k < 3; ++k) {
      {
        StepPhase::Backward backward(phase);
        EXPECT_TRUE(phase.is(Phase::kBackward));
        EXPECT_TRUE(anyone_in_backward());
        backward.finish();
      }
      EXPECT_FALSE(anyone_in_backward());
      EXPECT_TRUE(phase.is(Phase::kBackwardDone));
      EXPECT_EQ(phase.done(), k + 1);
      phase.enter(k < 2 ? Phase::kAccumulating : Phase::kSummed);
    }
    phase.enter(Phase::kUpdating);
    EXPECT_EQ(phase.done(), 3);
    phase.enter(Phase::kBetweenSteps);
    EXPECT_EQ(phase.done(), 0);
  }
}

TEST(StepPhase, IsFailedAfterABackwardThatThrows) {
  StepPhase phase;
  try {
    const StepPhase::Backward backward(phase);
    throw Error("no memory");
  } catch (const Error&) {
  }
  EXPECT_TRUE(phase.is(Phase::kBackwardFailed));
  EXPECT_FALSE(anyone_in_backward());
  EXPECT_EQ(phase.done(), 0);
  // It can be given up, or the engine unwrapped; a next step is neither.
  EXPECT_TRUE(StepPhase::follows(Phase::kSummed, phase.now()));
  EXPECT_TRUE(StepPhase::follows(Phase::kUnwrapped, phase.now()));
  EXPECT_FALSE(StepPhase::follows(Phase::kBackward, phase.now()));
  EXPECT_FALSE(StepPhase::follows(Phase::kUpdating, phase.now()));
}

TEST(StepPhase, EveryPhaseCanBeReachedAndEveryOtherTransitionIsRefusedByName) {
  for (const Phase now : kPhases) {
    const std::vector<Phase> way = way_to(now);
    ASSERT_FALSE(way.empty()) << phase_name(now);
    for (const Phase next : kPhases) {
      StepPhase phase;
      for (std::size_t i = 1; i < way.size(); ++i) {
        phase.enter(way[i]);
      }
      if (StepPhase::follows(next, now)) {
        phase.enter(next);
        EXPECT_EQ(phase.now(), next);
        continue;
      }
      const std::string message = message_of<InternalError>([&] { phase.enter(next); });
      EXPECT_TRUE(contains(message, phase_name(now)) && contains(message, phase_name(next)))
          << message;
      EXPECT_EQ(phase.now(), now);  // and nothing has changed
    }
  }
}

TEST(StepPhase, ParametersAreOnlyChangedByWhatWasSummedAndAnUnwrappedEngineIsFinished) {
  for (const Phase phase : kPhases) {
    EXPECT_EQ(StepPhase::follows(Phase::kUpdating, phase), phase == Phase::kSummed);
    EXPECT_FALSE(StepPhase::follows(phase, Phase::kUnwrapped)) << phase_name(phase);
    EXPECT_FALSE(StepPhase::follows(phase, phase)) << phase_name(phase);
  }
}

TEST(MicroBatches, DealtInTurnAreNumberedLikeCards) {
  for (std::int64_t total = 1; total <= 12; ++total) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const MicroBatches dealt = MicroBatches::in_turn(total, ranks);
      EXPECT_EQ(dealt.total(), total);
      EXPECT_EQ(dealt.rounds(), (total + ranks - 1) / ranks);
      EXPECT_TRUE(dealt.dealt_in_turn());
      for (int rank = 0; rank < ranks; ++rank) {
        for (std::int64_t k = 0; k < dealt.of(rank); ++k) {
          EXPECT_EQ(dealt.number(rank, k), rank + k * ranks);
        }
      }
    }
  }
}

// The chain of the sum is over rounds, and in each over ranks: numbers must rise in that order.
TEST(MicroBatches, DealtInAnyWayAreNumberedRoundByRound) {
  for (const std::vector<std::int64_t>& counts :
       std::vector<std::vector<std::int64_t>>{{3, 0, 1}, {0, 0, 4}, {1, 5, 2, 2}, {7}, {2, 3}}) {
    const MicroBatches dealt(counts);
    std::int64_t expected = 0;
    for (std::int64_t round = 0; round < dealt.rounds(); ++round) {
      for (int rank = 0; rank < static_cast<int>(counts.size()); ++rank) {
        const std::int64_t k = round - dealt.rounds_before(rank);
        if (k >= 0 && k < dealt.of(rank)) {
          EXPECT_EQ(dealt.number(rank, k), expected++);
        }
      }
    }
    EXPECT_EQ(expected, dealt.total());
    EXPECT_EQ(dealt.total(), std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  }
  // A slow rank leaves out the first round; ranks that are dealt to in turn leave out the last.
  EXPECT_EQ(MicroBatches({3, 1}).rounds_before(0), 0);
  EXPECT_EQ(MicroBatches({3, 1}).rounds_before(1), 1);
  EXPECT_EQ(MicroBatches({3, 1}).number(1, 0), 2);
  EXPECT_EQ(MicroBatches({2, 2, 1}).rounds_before(2), 0);
  EXPECT_FALSE(MicroBatches({3, 0, 1}).dealt_in_turn());
  EXPECT_FALSE(MicroBatches({2, 3}).dealt_in_turn());
  EXPECT_TRUE(MicroBatches({2, 2, 1}).dealt_in_turn());
  EXPECT_TRUE(contains(message_of<ConfigError>([] {
                         MicroBatches({3, 0}).number(1, 0);
                       }),
                       "rank 1 computes 0 micro-batches"));
}

TEST(ThreadPool, DoesEverythingOnceWithAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const std::size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> done(count);
      pool.run(count, [&](std::size_t i) { ++done[i]; });
      for (const auto& times : done) {
        EXPECT_EQ(times.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, NeverUsesMoreThreadsThanItWasGiven) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for (int round = 0; round < 50; ++round) {
    pool.run(20, [&](std::size_t) {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  }
  EXPECT_LE(seen.size(), 3U);  // the same ones in every round
}

TEST(ThreadPool, ThrowsTheFirstFailureAndWorksAgain) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> begun{0};
    const std::string message = message_of<ConfigError>([&] {
      pool.run(100, [&](std::size_t i) {
        ++begun;
        TRIREME_CHECK(i != 7, "number ", i);
      });
    });
    EXPECT_EQ(message, "number 7");
    EXPECT_GE(begun.load(), 8);
    std::atomic<int> sum{0};
    pool.run(10, [&](std::size_t i) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum.load(), 45);
  }
}

// A child of fork() has none of the threads. It may still train, and must be able to end.
TEST(ThreadPool, OfAChildOfForkWorksAloneAndEnds) {
  auto pool = std::make_unique<ThreadPool>(3);
  const auto sum_of = [&](std::size_t count) {
    std::atomic<std::size_t> sum{0};
    pool->run(count, [&](std::size_t i) { sum += i; });
    return sum.load();
  };
  EXPECT_EQ(sum_of(100), 4950U);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // waiting for those that are not there is a failure, too
    bool right = true;
    for (int round = 0; round < 3; ++round) {
      right = right && sum_of(100) == 4950;
    }
    pool.reset();
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(sum_of(100), 4950U);
}

// A memory that notes what it is told.
class NotingMemory final : public ParameterMemory {
 public:
  void adopt(std::size_t) override {}
  Span owned(std::size_t) override { return {}; }
  void begin_update() override { notes.push_back("begin"); }
  void updated(std::size_t unit) override { notes.push_back(concat("unit ", unit)); }
  void finish_update() override { notes.push_back("finish"); }
  void read(std::size_t, Range, const Span&) override {}
  void write(std::size_t, Range, const ConstSpan&) override {}
  void attach(std::size_t) override {}

  std::vector<std::string> notes;
};

TEST(Update, BeginsAndFinishesAndMakesOlderGraphsUnusable) {
  ModelPlan plan;
  plan.parameters.resize(2);
  for (Parameter& parameter : plan.parameters) {
    parameter.tensor = torch::ones({3});
  }
  const auto version = [&](std::size_t i) { return plan.parameters[i].tensor._version(); };
  const std::int64_t before[] = {version(0), version(1)};
  NotingMemory memory;
  {
    Update update(plan, memory);
    EXPECT_EQ(memory.notes, (std::vector<std::string>{"begin"}));
    update.written(4);
    update.changed(1);
    update.finish();
  }
  EXPECT_EQ(memory.notes, (std::vector<std::string>{"begin", "unit 4", "finish"}));
  EXPECT_EQ(version(0), before[0]);
  EXPECT_EQ(version(1), before[1] + 1);
  // One that an exception ends is left for unwrap(): the others may be anywhere.
  memory.notes.clear();
  EXPECT_THROW(
      {
        Update update(plan, memory);
        throw Error("a rule failed");
      },
      Error);
  EXPECT_EQ(memory.notes, (std::vector<std::string>{"begin"}));
}

}  // namespace
}  // namespace trireme::detail::engine_pieces_test
