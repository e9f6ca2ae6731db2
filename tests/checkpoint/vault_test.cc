// What a rank keeps in memory that outlives it.

#include <algorithm>
#include <csignal>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/vault_segment.h"
#include "trireme/core/error.h"

namespace trireme::vault_test {
namespace {

using detail::VaultLayout;
using detail::VaultSegment;

constexpr std::int64_t kElements = 5'000'011;  // enough for threads to help

// The value of an element in a version.
float value(std::int64_t step, std::int64_t element) {
  return static_cast<float>(step * 1000 + element % 997);
}

struct Training {
  std::vector<float> weights = std::vector<float>(kElements);
  std::vector<std::uint8_t> generator = std::vector<std::uint8_t>(13);
  StateView view;

  Training() {
    view.tensors = {{kWeightKind, "linear.weight", Dtype::kFloat32, {1, 2 * kElements}, {}},
                    {kRandomKind, "rank-0", Dtype::kUint8, {13}, {}}};
    view.slices = {{0, {kElements, 2 * kElements}, reinterpret_cast<std::byte*>(weights.data())},
                   {1, {0, 13}, reinterpret_cast<std::byte*>(generator.data())}};
  }
  void step(std::int64_t number) {
    for (std::int64_t i = 0; i < kElements; ++i) {
      weights[static_cast<std::size_t>(i)] = value(number, i);
    }
    std::fill(generator.begin(), generator.end(), static_cast<std::uint8_t>(number));
  }
};

void expect_version(const VaultSegment& segment, std::int64_t step, int place) {
  EXPECT_EQ(segment.notes(place).at("step"), std::to_string(step));
  const StateView view = segment.state(place);
  ASSERT_EQ(view.slices.size(), 2U);
  EXPECT_EQ(view.tensors[0].name, "linear.weight");
  EXPECT_EQ(view.slices[0].range.begin, kElements);
  const auto* weights = reinterpret_cast<const float*>(view.slices[0].data);
  std::int64_t good = 0;
  while (good < kElements && weights[good] == value(step, good)) {
    ++good;
  }
  EXPECT_EQ(good, kElements) << "in step " << step << ": "
                             << weights[std::min(good, kElements - 1)];
  for (int i = 0; i < 13; ++i) {
    ASSERT_EQ(std::to_integer<int>(view.slices[1].data[i]), static_cast<std::uint8_t>(step));
  }
}

Notes notes_of(std::int64_t step) {
  return {{"step", std::to_string(step)}};
}

TEST(Vault, HoldsTheLastTwoVersions) {
  Training training;
  const auto segment = VaultSegment::make({.epoch = 7, .use = 2, .rank = 1, .ranks = 3},
                                          VaultLayout::of(training.view, notes_of(0)));
  EXPECT_TRUE(segment->versions().empty());
  for (std::int64_t step = 1; step <= 5; ++step) {
    training.step(step);
    ASSERT_TRUE(segment->save(step, training.view, notes_of(step)));
  }
  const auto opened = VaultSegment::open(segment->memory());
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->owner().epoch, 7);
  EXPECT_EQ(opened->owner().use, 2);
  EXPECT_EQ(opened->owner().rank, 1);
  EXPECT_EQ(opened->owner().ranks, 3);
  const auto versions = opened->versions();
  ASSERT_EQ(versions.size(), 2U);
  for (const auto& [step, place] : versions) {
    EXPECT_GE(step, 4);
    expect_version(*opened, step, place);
  }
}

// The version that another machine has a copy of stays, and so does the newest.
TEST(Vault, HoldsAVersionThatIsToStay) {
  Training training;
  const auto segment =
      VaultSegment::make({}, VaultLayout::of(training.view, notes_of(0), /*places=*/3));
  for (std::int64_t step = 1; step <= 9; ++step) {
    const std::int64_t kept = step < 3 ? VaultSegment::kNone : step < 7 ? 2 : 6;
    training.step(step);
    ASSERT_TRUE(segment->save(step, training.view, notes_of(step), kept));
    const auto versions = segment->versions();
    EXPECT_TRUE(versions.contains(step));
    EXPECT_TRUE(versions.contains(std::max<std::int64_t>(1, step - 1)));
    EXPECT_TRUE(kept == VaultSegment::kNone || versions.contains(kept));
    for (const auto& [each, place] : versions) {
      expect_version(*segment, each, place);
    }
  }
}

// A rank is killed at any instant: one version before it, at least, is whole.
TEST(Vault, IsWholeHoweverItsRankEnded) {
  for (int round = 0; round < 20; ++round) {
    Training training;
    training.step(1);
    const auto segment = VaultSegment::make({}, VaultLayout::of(training.view, notes_of(1)));
    ASSERT_TRUE(segment->save(1, training.view, notes_of(1)));
    const pid_t rank = fork();
    ASSERT_GE(rank, 0);
    if (rank == 0) {
      for (std::int64_t step = 2;; ++step) {
        training.step(step);
        segment->save(step, training.view, notes_of(step));
      }
    }
    usleep(1000 + 700 * static_cast<unsigned>(round));
    kill(rank, SIGKILL);
    waitpid(rank, nullptr, 0);
    const auto versions = segment->versions();
    ASSERT_FALSE(versions.empty());
    for (const auto& [step, place] : versions) {
      expect_version(*segment, step, place);
    }
  }
}

TEST(Vault, HasNoRoomForAnotherState) {
  Training training;
  const auto segment = VaultSegment::make({}, VaultLayout::of(training.view, notes_of(1)));
  StateView other = training.view;
  other.tensors[0].name = "other.weight";
  EXPECT_FALSE(segment->has_room_for(other, notes_of(1)));
  EXPECT_FALSE(segment->save(1, other, notes_of(1)));
  StateView part = training.view;
  part.slices.pop_back();
  EXPECT_FALSE(segment->save(1, part, notes_of(1)));
  EXPECT_FALSE(segment->save(1, training.view, {{"long", std::string(1 << 20, 'x')}}));
  EXPECT_TRUE(segment->versions().empty());
}

TEST(Vault, IsNotFoundInOtherMemory) {
  EXPECT_FALSE(VaultSegment::open(device::create_memory(1 << 16)));
  EXPECT_FALSE(VaultSegment::open(device::create_memory(100)));
}

}  // namespace
}  // namespace trireme::vault_test
