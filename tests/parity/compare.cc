#include "parity/compare.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "support/ranks.h"

namespace trireme::testing {

EngineOptions options_in(const Case& item, const Mode& mode, const World& world) {
  EngineOptions options = item.options;
  options.zero = mode.zero;
  options.placement = mode.placement;
  if (!world.one_machine() && mode.placement == Placement::kMapped) {
    options.placement = Placement::kAutomatic;
  }
  for (int rank = 0; item.uneven_shares && rank < world.size(); ++rank) {
    options.shares.push_back(1 + rank % 4);
  }
  return options;
}

Board::Board(std::size_t count)
    : data_(static_cast<char*>(mmap(
          nullptr, count * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}

void Board::put(std::size_t i, const Result& result) const {
  const std::size_t size = result.size();
  ASSERT_LE(size + sizeof(size), kBytes);
  std::memcpy(data_ + i * kBytes, &size, sizeof(size));
  std::memcpy(data_ + i * kBytes + sizeof(size), result.data(), size);
}

Result Board::get(std::size_t i) const {
  std::size_t size = 0;
  std::memcpy(&size, data_ + i * kBytes, sizeof(size));
  const char* from = data_ + i * kBytes + sizeof(size);
  return {from, from + size};
}

std::string first_difference(const Result& a, const Result& b) {
  if (a.size() != b.size()) {
    return "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  }
  std::size_t differing = 0;
  std::size_t first = a.size();
  for (std::size_t i = 0; i + 4 <= a.size(); i += 4) {
    if (std::memcmp(&a[i], &b[i], 4) != 0) {
      ++differing;
      first = std::min(first, i);
    }
  }
  return std::to_string(differing) + " of " + std::to_string(a.size() / 4) +
         " words differ, the first is " + std::to_string(first / 4);
}

namespace {

void train_cases(const std::vector<Case>& cases,
                 const Board& board,
                 const std::function<Result(const Case& item)>& train,
                 int threads) {
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    board.put(i, train(cases[i]));
  }
}

void compare_in(const std::shared_ptr<World>& world,
                const std::vector<Case>& cases,
                const Board& board,
                int threads) {
  at::set_num_threads(threads);
  ASSERT_EQ(at::get_num_threads(), threads);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Result expected = board.get(i);
    ASSERT_FALSE(expected.empty()) << cases[i].name;
    for (const Mode& mode : kModes) {
      const Result found = train_with_engine(cases[i], options_in(cases[i], mode, *world), world);
      // The norms are those of ranks that had the last micro-batch: all of them here know them.
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0)
          << cases[i].name << ", " << mode.name << ", rank " << world->rank() << " of "
          << world->size() << ": " << first_difference(found, expected);
    }
  }
}

}  // namespace

bool train_all(const std::vector<Case>& cases,
               const Board& board,
               const std::function<Result(const Case& item)>& train,
               int threads) {
  if (in_external_layout()) {
    train_cases(cases, board, train, threads);  // each rank for itself: they may share no memory
    return true;
  }
  return fork_ranks(1, [&](int) { train_cases(cases, board, train, threads); }).front() == 0;
}

void compare_everywhere(const std::vector<Case>& cases,
                        const Board& board,
                        int world_size,
                        int threads) {
  ASSERT_TRUE(world_size % sum_group() == 0 || sum_group() % world_size == 0)
      << "groups of " << sum_group() << " do not fit " << world_size
      << " ranks: a filter has to leave this world out";
  if (in_external_layout()) {
    const auto world = init(options_for("", 0, 0));
    ASSERT_EQ(world->size(), world_size) << "as the launcher's";
    compare_in(world, cases, board, threads);
    return;
  }
  fork_ranks(world_size, [&, job = unique_job()](int rank) {
    at::set_num_threads(threads);
    compare_in(init(options_for(job, rank, world_size)), cases, board, threads);
  });
}

}  // namespace trireme::testing
