// Workers that get changed rows have what the owner had in the version that they asked for.

#include "server/row_changes.h"

#include <cstring>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace trireme::row_changes_test {
namespace {

using detail::ChangedRows;
using detail::OwnedPart;
using detail::RowChanges;

constexpr std::int64_t kWidth = 5;
// Begins and ends in the middle of a row.
constexpr Range kRange{3, 62};

std::vector<std::int64_t> rows_of(const std::set<std::int64_t>& elements) {
  std::set<std::int64_t> rows;
  for (const std::int64_t element : elements) {
    rows.insert(element / kWidth);
  }
  return {rows.begin(), rows.end()};
}

// What an answer does to a worker's copy of all elements, element by element.
void take(const ChangedRows& changed, std::vector<float>& copy) {
  const auto* values = reinterpret_cast<const float*>(changed.values.data());
  std::int64_t at = 0;
  for (std::int64_t element = kRange.begin; element < kRange.end; ++element) {
    const bool has = changed.whole || std::ranges::count(changed.rows, element / kWidth) > 0;
    if (has) {
      copy[static_cast<std::size_t>(element)] = values[at++];
    }
  }
  ASSERT_EQ(changed.values.size(), static_cast<std::size_t>(at) * sizeof(float));
}

// Versions of random changes, asked for by workers that are as much behind as they like. With
// `bound`, for a version that many steps old.
void train(std::uint32_t seed, std::int64_t bound, bool sometimes_whole, int steps) {
  std::mt19937 random(seed);
  const auto draw = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  constexpr int kWorkers = 3;
  std::vector<float> owned(kRange.size());
  RowChanges changes({{0, kRange, 0, kWidth}}, kWorkers, bound > 0);
  const RowChanges::Owned now = [&](std::size_t) {
    return Span(owned.data(), kRange.size(), Dtype::kFloat32);
  };
  std::map<std::int64_t, std::vector<float>> versions = {{0, owned}};
  std::vector<std::vector<float>> copies(kWorkers, std::vector<float>(64));
  changes.begin_at(0);
  std::vector<std::int64_t> has(kWorkers, 0);
  for (std::int64_t version = 1; version <= steps; ++version) {
    std::vector<ChangedRows> changed(1);
    changed[0].whole = sometimes_whole && draw(4) == 0;
    std::set<std::int64_t> elements;
    for (int k = 0; k < 7; ++k) {
      elements.insert(kRange.begin + draw(static_cast<int>(kRange.size())));
    }
    for (std::int64_t element = kRange.begin; element < kRange.end; ++element) {
      if (changed[0].whole || elements.contains(element)) {
        owned[static_cast<std::size_t>(element - kRange.begin)] =
            static_cast<float>(1000 * version + element);
      }
    }
    if (!changed[0].whole) {
      changed[0].rows = rows_of(elements);
    }
    changes.made(version, changed, now);
    versions[version] = owned;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const std::int64_t asked =
          std::max<std::int64_t>(0, version - (bound > 0 ? draw(static_cast<int>(bound) + 1) : 0));
      if (draw(3) == 0 || asked < has[static_cast<std::size_t>(worker)]) {
        continue;
      }
      const auto answer = changes.answer(worker, asked, version, now);
      ASSERT_EQ(answer.size(), 1U);
      auto& copy = copies[static_cast<std::size_t>(worker)];
      take(answer[0], copy);
      has[static_cast<std::size_t>(worker)] = asked;
      ASSERT_EQ(
          std::memcmp(
              copy.data() + kRange.begin, versions[asked].data(), owned.size() * sizeof(float)),
          0)
          << "worker " << worker << ", version " << asked << " of " << version;
    }
  }
}

TEST(RowChanges, WorkersHaveWhatTheOwnerHad) {
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    train(seed, 0, false, 60);
    train(seed, 3, false, 60);
    train(seed, 0, true, 60);
    train(seed, 3, true, 60);
  }
}

// Who is slow for long gets what many versions have changed, and not all that there is.
TEST(RowChanges, TakesTogetherWhatIsNotAskedFor) {
  std::vector<float> owned(kRange.size());
  RowChanges changes({{0, kRange, 0, kWidth}}, 2, false);
  const RowChanges::Owned now = [&](std::size_t) {
    return Span(owned.data(), kRange.size(), Dtype::kFloat32);
  };
  changes.begin_at(7);
  for (std::int64_t version = 8; version < 500; ++version) {
    changes.made(version, {{false, {version % 2 == 0 ? 1 : 4}, {}}}, now);
    const auto answer = changes.answer(0, version, version, now);
    EXPECT_EQ(answer[0].rows, (std::vector<std::int64_t>{version % 2 == 0 ? 1 : 4}));
  }
  const auto answer = changes.answer(1, 499, 499, now);
  EXPECT_EQ(answer[0].rows, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(answer[0].values.size(), 2 * kWidth * sizeof(float));
  EXPECT_TRUE(changes.answer(1, 499, 499, now)[0].rows.empty());
  // Nobody waits for one that has left.
  changes.leaves(1);
  changes.made(500, {{true, {}, {}}}, now);
  EXPECT_TRUE(changes.answer(0, 500, 500, now)[0].whole);
}

}  // namespace
}  // namespace trireme::row_changes_test
