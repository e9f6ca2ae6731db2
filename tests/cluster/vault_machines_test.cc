// What ranks on several machines keep, and what is left of it when machines are lost. The state of
// a step comes from a formula.

#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "cluster/kept_on_machines.h"
#include "cluster/shared_numbers.h"
#include "trireme/checkpoint/vault.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme::vault_machines_test {
namespace {

using detail::concat;
using testing::KeepingMachines;
using testing::Machines;
using testing::SharedNumbers;

// More than one piece of a transfer for each rank, and no round number.
constexpr std::int64_t kElements = 4'000'037;
constexpr int kTensors = 3;
constexpr std::int64_t kShort = 101;  // of the last one
constexpr std::int64_t kGenerator = 29;

std::int64_t numel_of(int tensor) {
  return tensor + 1 == kTensors ? kShort : kElements / (tensor + 1);
}

float value(std::int64_t step, int tensor, std::int64_t element) {
  return static_cast<float>(step * 2003 + tensor * 17 + element % 1999);
}

// A rank's memory for a state: its share of each tensor, or all of it (`whole`).
class State {
 public:
  State(int rank, int ranks, bool whole) {
    for (int t = 0; t < kTensors; ++t) {
      view_.tensors.push_back({t == 0 ? kWeightKind : "optimizer.exp_avg",
                               concat("tensor.", t),
                               Dtype::kFloat32,
                               {numel_of(t)},
                               {}});
      const Range share =
          whole ? Range{0, numel_of(t)} : even_range(numel_of(t), ranks, ranks - 1 - rank);
      memory_.emplace_back(static_cast<std::size_t>(share.size()), -1.0F);
      view_.slices.push_back({static_cast<std::size_t>(t), share, nullptr});
    }
    for (int r = 0; r < ranks; ++r) {
      view_.tensors.push_back({kRandomKind, concat("rank-", r), Dtype::kUint8, {kGenerator}, {}});
    }
    for (int t = 0; t < kTensors; ++t) {
      view_.slices[at(t)].data = reinterpret_cast<std::byte*>(memory_[at(t)].data());
    }
    view_.slices.push_back(
        {at(kTensors + rank), {0, kGenerator}, reinterpret_cast<std::byte*>(generator_.data())});
  }

  const StateView& view() const { return view_; }

  void set(std::int64_t step) {
    for_each([&](float& element, int tensor, std::int64_t i) { element = value(step, tensor, i); });
    generator_.assign(kGenerator, static_cast<std::uint8_t>(step + 7));
  }
  void expect(std::int64_t step, bool with_generator) {
    std::int64_t wrong = 0;
    for_each([&](float& element, int tensor, std::int64_t i) {
      wrong += element == value(step, tensor, i) ? 0 : 1;
    });
    EXPECT_EQ(wrong, 0) << "elements of step " << step;
    const auto expected = static_cast<std::uint8_t>(with_generator ? step + 7 : 0xEE);
    EXPECT_EQ(generator_, std::vector<std::uint8_t>(kGenerator, expected));
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  template <class Use>
  void for_each(const Use& use) {
    for (int t = 0; t < kTensors; ++t) {
      const std::int64_t begin = view_.slices[at(t)].range.begin;
      for (std::size_t i = 0; i < memory_[at(t)].size(); ++i) {
        use(memory_[at(t)][i], t, begin + static_cast<std::int64_t>(i));
      }
    }
  }

  StateView view_;
  std::vector<std::vector<float>> memory_;
  std::vector<std::uint8_t> generator_ = std::vector<std::uint8_t>(kGenerator, 0xEE);
};

Notes notes_of(std::int64_t step) {
  return {{"step", std::to_string(step)}, {"text", std::string(step % 5 * 100, 'x')}};
}

// What the ranks of a world do.
struct Course {
  std::int64_t every = 1;               // TRIREME_REDUNDANCY
  bool whole = false;                   // ranks load all of the state, of which they save a share
  std::optional<std::int64_t> found{};  // the step that is to be found; -1: none
  std::string lost{};                   // where there is none
  std::int64_t until = 5;               // the last step
};

constexpr std::size_t kMostRanks = 16;

class VaultMachinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* feature : {"", "switch", "rate"}) {
      if (const auto reason = Machines::unavailable(feature)) {
        GTEST_SKIP() << *reason;
      }
    }
  }

  // The ranks look for the newest version, check every element of it, and save the steps after it.
  // Where machines are to be lost, when all have ended the last save and `after` that, they wait
  // for it.
  void run(KeepingMachines& bed,
           const std::vector<int>& ranks,
           const Course& course,
           const std::vector<int>& lost_machines = {},
           std::chrono::milliseconds after = {}) {
    const auto size = static_cast<std::size_t>(std::accumulate(ranks.begin(), ranks.end(), 0));
    for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
      saved_[rank] = -1;
    }
    std::optional<std::chrono::steady_clock::time_point> end;
    bed.run_world(
        ranks,
        [&](const std::shared_ptr<World>& world) { train(world, course, !lost_machines.empty()); },
        [&] {
          if (!end && least_saved(size) >= course.until) {
            end = std::chrono::steady_clock::now() + after;
          }
          if (end && std::chrono::steady_clock::now() >= *end) {
            for (const int machine : lost_machines) {
              bed.kill_machine(machine);
            }
          }
        });
  }

  void train(const std::shared_ptr<World>& world, const Course& course, bool waits) {
    setenv(kEnvRedundancy, std::to_string(course.every).c_str(), 1);
    Vault vault(world);
    const std::int64_t newest = vault.newest() ? vault.newest()->step : -1;
    found_[0] = newest;
    if (course.found) {
      EXPECT_EQ(newest, *course.found) << vault.lost();
    }
    EXPECT_EQ(vault.lost().find(course.lost) != std::string::npos, true) << vault.lost();
    EXPECT_TRUE(!vault.newest() || vault.lost().empty());
    if (vault.newest()) {
      EXPECT_EQ(vault.newest()->notes, notes_of(newest));
      State into(world->rank(), world->size(), course.whole);
      vault.load(into.view());
      into.expect(newest, vault.newest()->ranks == world->size());
    }
    State state(world->rank(), world->size(), /*whole=*/false);
    state.set(newest);
    vault.keep_loaded(state.view());
    saved_[static_cast<std::size_t>(world->rank())] = newest;
    for (std::int64_t step = std::max<std::int64_t>(newest, 0) + 1; step <= course.until; ++step) {
      state.set(step);
      vault.save(step, state.view(), notes_of(step));
      saved_[static_cast<std::size_t>(world->rank())] = step;
    }
    if (waits) {
      // Nobody ends by itself: they hear of the loss.
      std::vector<std::int32_t> never(1);
      world->recv(never, (world->rank() + 1) % world->size()).wait();
    }
  }

  std::int64_t least_saved(std::size_t ranks) {
    std::int64_t least = saved_[0];
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      least = std::min<std::int64_t>(least, saved_[rank]);
    }
    return least;
  }
  std::int64_t most_saved() {
    std::int64_t most = -1;
    for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
      most = std::max<std::int64_t>(most, saved_[rank]);
    }
    return most;
  }

  SharedNumbers<std::int64_t> saved_{kMostRanks};  // the last step whose save has returned, by rank
  SharedNumbers<std::int64_t> found_{1};
};

constexpr auto kLongEnough = std::chrono::milliseconds(1500);  // for a transfer that nothing slows

// (ranks of each machine, every how many steps, whether ranks load all)
using Layout = std::vector<int>;
class LostMachineTest : public VaultMachinesTest,
                        public ::testing::WithParamInterface<std::tuple<Layout, int, bool>> {};

TEST_P(LostMachineTest, OthersGoOnFromItsCopyAndItComesBack) {
  const auto& [layout, every, whole] = GetParam();
  const auto machines = static_cast<int>(layout.size());
  const int lost = (every + (whole ? 1 : 0)) % machines;
  KeepingMachines bed(machines);
  // Copied are 1, 2, ... or 1, 4.
  run(bed, layout, {.every = every, .whole = whole, .found = -1, .until = 5}, {lost}, kLongEnough);
  const std::int64_t copied = every == 1 ? 5 : 4;
  Layout left = layout;
  left[static_cast<std::size_t>(lost)] = 0;
  const Course second{.every = every, .whole = whole, .found = copied, .until = copied + 4};
  run(bed, left, second);
  for (int machine = 0; machine < machines; ++machine) {
    for (const auto& kept : bed.kept(machine)) {
      EXPECT_EQ(kept.epoch, 1) << "machine " << machine << " keeps what nobody needs";
    }
    EXPECT_EQ(bed.kept(machine).empty(), machine == lost);
    if (machines == 2 && machine != lost) {  // alone: nothing is copied
      EXPECT_EQ(bed.kept(machine).size(), static_cast<std::size_t>(layout[std::size_t(machine)]));
    }
  }
  Layout more = layout;
  for (int& ranks : more) {
    ++ranks;
  }
  run(bed,
      more,
      {.every = every, .whole = whole, .found = second.until, .until = second.until + 2});
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LostMachineTest,
    ::testing::Combine(::testing::Values(Layout{1, 1}, Layout{3, 1}, Layout{1, 3, 2}),
                       ::testing::Values(1, 3),
                       ::testing::Bool()));

// The second before the others have taken a step without the first: what they had found was
// copied again.
TEST_F(VaultMachinesTest, OneMachineAfterTheOtherIsLost) {
  for (const int every : {1, 3}) {
    KeepingMachines bed(3);
    run(bed, {1, 2, 1}, {.every = every, .until = 4}, {1}, kLongEnough);
    run(bed, {1, 0, 1}, {.every = every, .found = 4, .until = 4}, {2}, kLongEnough);
    run(bed, {2, 0, 0}, {.every = every, .found = 4, .until = 5});
  }
}

// A version of which only a part has come to the other machine does not count.
TEST_F(VaultMachinesTest, AMachineIsLostInTheMiddleOfATransfer) {
  for (const int every : {1, 3}) {
    KeepingMachines bed(2);
    bed.machines().rate("100mbit");  // a version of a rank takes about a second
    const std::int64_t until = every == 1 ? 3 : 4;
    run(bed, {1, 1}, {.every = every, .until = until}, {1}, std::chrono::milliseconds(200));
    bed.machines().rate("off");
    run(bed, {2, 0}, {.every = every, .found = until - every, .until = until});
  }
}

// When it is lost after another save, the version has been acknowledged.
TEST_F(VaultMachinesTest, AMachineIsLostAfterTheAcknowledgement) {
  KeepingMachines bed(2);
  run(bed, {2, 1}, {.every = 3, .until = 6}, {0});
  run(bed, {0, 2}, {.every = 3, .found = 4, .until = 5});
}

TEST_F(VaultMachinesTest, AMachineIsLostAtAnyInstant) {
  std::mt19937 random(7);
  for (const int every : {1, 1, 2, 3, 3}) {
    KeepingMachines bed(3);
    const Layout layout{1, 2, 1};
    const int lost = static_cast<int>(random() % 3);
    const auto when = std::chrono::milliseconds(random() % 700);
    std::optional<std::chrono::steady_clock::time_point> begin;
    for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
      saved_[rank] = -1;
    }
    bed.run_world(
        layout,
        [&](const std::shared_ptr<World>& world) {
          train(world, {.every = every, .until = 100'000}, false);
        },
        [&] {
          const auto now = std::chrono::steady_clock::now();
          if (!begin && least_saved(4) >= every + 1) {
            begin = now;
          }
          if (begin && now - *begin >= when) {
            bed.kill_machine(lost);
          }
        });
    const std::int64_t last = most_saved();
    Layout left = layout;
    left[static_cast<std::size_t>(lost)] = 0;
    run(bed, left, {.every = every, .until = 0});
    EXPECT_GE(found_[0], last - every) << "every " << every;
    EXPECT_LE(found_[0], last + 1);
  }
}

// Ranks alone are lost: their memory is not, and no more than the step at hand is.
TEST_F(VaultMachinesTest, RanksAreLostOnAllMachines) {
  KeepingMachines bed(2);
  run(bed, {2, 2}, {.every = 3, .until = 6});
  run(bed, {1, 2}, {.every = 3, .found = 6, .until = 7});
}

TEST_F(VaultMachinesTest, TwoOfThreeMachinesAreLost) {
  KeepingMachines bed(3);
  run(bed, {1, 2, 1}, {.until = 4}, {1, 2}, kLongEnough);
  // Machine 2 had the copy of machine 1's ranks 1 and 2; that of rank 3 is here.
  run(bed,
      {2, 0, 0},
      {.found = -1,
       .lost = "of the state of step 4, which 4 ranks had kept in memory, the part of ranks 1, 2 "
               "is on no machine that is left",
       .until = 1});
}

TEST_F(VaultMachinesTest, NothingIsCopiedWhereItIsOff) {
  KeepingMachines bed(2);
  run(bed, {2, 1}, {.every = 0, .until = 3}, {1}, kLongEnough);
  EXPECT_EQ(bed.kept(0).size(), 2U);
  run(bed, {2, 0}, {.every = 0, .found = -1, .lost = "the part of rank 2 is on no", .until = 1});
}

TEST_F(VaultMachinesTest, OneMachineCopiesNothing) {
  KeepingMachines bed(2);
  run(bed, {3, 0}, {.found = -1, .until = 4});
  EXPECT_EQ(bed.kept(0).size(), 3U);
  run(bed, {2, 0}, {.whole = true, .found = 4, .until = 5});
}

// A copy takes the bytes of what the rank saved.
TEST_F(VaultMachinesTest, WhatACopyCosts) {
  const auto sent = [&](std::int64_t every, std::int64_t steps) {
    KeepingMachines bed(2);
    run(bed, {1, 1}, {.every = every, .until = steps});
    return bed.machines().bytes(0, 0).sent;
  };
  constexpr std::int64_t kSteps = 7;
  const std::int64_t without = sent(0, kSteps);
  const auto payload = static_cast<double>(State(0, 2, /*whole=*/false).view().size_bytes());
  constexpr double kWrapping = 1.1;  // of Ethernet, IP and TCP, with acknowledgements
  for (const auto& [every, copies] : {std::pair(1, 7), std::pair(3, 3)}) {  // 1 to 7; 1, 4, 7
    const auto more = static_cast<double>(sent(every, kSteps) - without);
    EXPECT_GE(more, copies * payload);
    EXPECT_LE(more, copies * payload * kWrapping);
    std::printf("every %d: %.0f bytes for %d copies of %.0f\n", every, more, copies, payload);
  }
}

}  // namespace
}  // namespace trireme::vault_machines_test
