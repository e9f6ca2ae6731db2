// Algorithms that are asked for by name, where ranks share a machine. That those which keep the
// order of summation give the reference bits is in collectives_test.cc.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::concat;
using detail::index;
using testing::Bytes;
using testing::fork_world;
using testing::message_of;
using testing::spawn_world;
using testing::Terms;

constexpr std::array kSpecial = {"ring", "tree", "doubling", "aggregator"};

std::function<void(InitOptions&)> by(const char* name) {
  return [name](InitOptions& options) { options.algorithm = name; };
}

double value_of(Dtype dtype, const Bytes& bytes, std::int64_t i) {
  const auto read = [&](auto value) {
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(value), sizeof(value));
    return value;
  };
  switch (dtype) {
    case Dtype::kFloat32:
      return read(float{});
    case Dtype::kFloat64:
      return read(double{});
    case Dtype::kFloat16:
      return testing::half_value(read(std::uint16_t{}));
    default:
      return testing::bfloat16_value(read(std::uint16_t{}));
  }
}

// Half a unit in the last place of 1.
double roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return 0x1p-24;
    case Dtype::kFloat64:
      return 0x1p-53;
    case Dtype::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

// The sum that each part of a ring makes is off by a rounding per term, each of at most half a unit
// of the sum of the magnitudes (and of the smallest float16); an average by one more, and by that
// of this formula in float64.
void expect_near(const Terms& terms, ReduceOp op, Range range, const Bytes& found) {
  const double count = static_cast<double>(terms.inputs.size());
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    double sum = 0;
    double magnitude = 0;
    for (const Bytes& input : terms.inputs) {
      sum += value_of(terms.dtype, input, i);
      magnitude += std::fabs(value_of(terms.dtype, input, i));
    }
    const double by = op == ReduceOp::kAverage ? count : 1;
    const double tolerance =
        (count + 1) * (1.01 * roundoff(terms.dtype) + 0x1p-53) * magnitude / by +
        (terms.dtype == Dtype::kFloat16 ? (count + 1) * 0x1p-25 : 0);
    ASSERT_NEAR(value_of(terms.dtype, found, i - range.begin), sum / by, tolerance)
        << reduce_name(op) << " " << dtype_name(terms.dtype) << " " << i << " of " << terms.numel;
  }
}

// What no order changes: integers, minimum and maximum, and what travels with the announcements.
bool has_reference_bits(const Terms& terms, ReduceOp op, std::size_t bytes_of_announcements) {
  const bool is_float = terms.dtype == Dtype::kFloat32 || terms.dtype == Dtype::kFloat64 ||
                        terms.dtype == Dtype::kFloat16 || terms.dtype == Dtype::kBFloat16;
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return !is_float || !sums || terms.inputs.size() == 1 ||
         static_cast<std::size_t>(terms.numel) * dtype_bytes(terms.dtype) <= bytes_of_announcements;
}

void expect_the_same_everywhere(World& world, const Bytes& bytes) {
  std::uint64_t digest = 14695981039346656037U;  // FNV-1a
  for (const std::uint8_t byte : bytes) {
    digest = (digest ^ byte) * 1099511628211U;
  }
  const auto mine = static_cast<std::int64_t>(digest);
  std::vector<std::int64_t> all(index(world.size()));
  world.all_gather(Span(const_cast<std::int64_t*>(&mine), 1, Dtype::kInt64), all).wait();
  EXPECT_EQ(all, std::vector<std::int64_t>(all.size(), mine));
}

class RingSums : public ::testing::TestWithParam<int> {};

TEST_P(RingSums, AreWithinRoundingAndTheSameOnAllRanks) {
  const int size = GetParam();
  std::vector<Terms> terms;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const std::int64_t numel : {0, 1, size - 1, size + 1, 1021, 140'007}) {
      using enum ReduceOp;
      terms.push_back(
          static_cast<Dtype>(dtype) == Dtype::kBool
              ? Terms(Dtype::kBool, numel, size, {kMin, kMax})
              : Terms(static_cast<Dtype>(dtype), numel, size, {kSum, kAverage, kMin, kMax}));
    }
  }
  fork_world(
      size,
      [&](World& world) {
        const int rank = world.rank();
        for (const Terms& each : terms) {
          const std::size_t element = dtype_bytes(each.dtype);
          const std::int64_t numel = each.numel;
          const auto expect = [&](ReduceOp op, Range range, const Bytes& found) {
            if (!has_reference_bits(each, op, 4096)) {
              expect_near(each, op, range, found);
              return;
            }
            const Bytes& whole = each.reduced.at(op);
            const auto at = [&](std::int64_t i) {
              return whole.begin() + i * static_cast<std::int64_t>(element);
            };
            ASSERT_TRUE(std::equal(found.begin(), found.end(), at(range.begin), at(range.end)))
                << reduce_name(op) << " " << dtype_name(each.dtype) << " x " << numel;
          };
          for (const auto& [op, reduced] : each.reduced) {
            Bytes data = each.inputs[index(rank)];
            world.all_reduce(Span(data.data(), numel, each.dtype), op).wait();
            expect(op, {0, numel}, data);
            expect_the_same_everywhere(world, data);

            const Range mine = even_range(numel, size, rank);
            Bytes part(static_cast<std::size_t>(mine.size()) * element);
            world
                .reduce_scatter(ConstSpan(each.inputs[index(rank)].data(), numel, each.dtype),
                                Span(part.data(), mine.size(), each.dtype),
                                op)
                .wait();
            expect(op, mine, part);

            Bytes whole(data.size());
            world
                .all_gather(ConstSpan(part.data(), mine.size(), each.dtype),
                            Span(whole.data(), numel, each.dtype))
                .wait();
            expect(op, {0, numel}, whole);
            expect_the_same_everywhere(world, whole);

            data = each.inputs[index(rank)];
            world.reduce(Span(data.data(), numel, each.dtype), size - 1, op).wait();
            if (rank == size - 1) {
              expect(op, {0, numel}, data);
            } else {
              EXPECT_EQ(data, each.inputs[index(rank)]);
            }
          }
        }
      },
      by("ring"));
}

INSTANTIATE_TEST_SUITE_P(World, RingSums, ::testing::Values(1, 2, 3, 4, 5));

// That the ring goes around: its sums are not those of the canonical order. Else this test and the
// label would be about nothing.
TEST(NamedAlgorithms, TheRingHasAnOrderOfItsOwn) {
  constexpr int kRanks = 3;
  const Terms terms(Dtype::kFloat32, 100'003, kRanks, {ReduceOp::kSum});
  fork_world(
      kRanks,
      [&](World& world) {
        Bytes data = terms.inputs[index(world.rank())];
        world.all_reduce(Span(data.data(), terms.numel, terms.dtype)).wait();
        // Part c begins with the term of rank c + 1 and ends with that of rank c: float32 chains,
        // as the compiler adds them.
        for (std::int64_t c = 0; c < kRanks; ++c) {
          const Range part = even_range(terms.numel, kRanks, static_cast<int>(c));
          for (std::int64_t i = part.begin; i < part.end; ++i) {
            const auto term = [&](std::int64_t rank) {
              return static_cast<float>(value_of(
                  Dtype::kFloat32, terms.inputs[static_cast<std::size_t>(rank % kRanks)], i));
            };
            const float sum = (term(c + 1) + term(c + 2)) + term(c);
            ASSERT_EQ(value_of(Dtype::kFloat32, data, i), sum) << i;
          }
        }
        EXPECT_NE(data, terms.reduced.at(ReduceOp::kSum));
      },
      by("ring"));
}

std::string said_by_a_world(const char* name) {
  ::testing::internal::CaptureStderr();
  fork_world(
      2,
      [](World& world) {
        std::vector<float> data(100'000, 1);
        world.all_reduce(data).wait();
      },
      by(name));
  return ::testing::internal::GetCapturedStderr();
}

TEST(NamedAlgorithms, OnlyTheRingIsLabelled) {
  const std::string warning = "\"ring\" sums in an order of its own";
  const std::string said = said_by_a_world("ring");
  const auto first = said.find(warning);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(warning, first + 1), std::string::npos) << "once is enough: " << said;
  for (const char* name : {"auto", "direct", "tree", "doubling", "aggregator"}) {
    EXPECT_EQ(said_by_a_world(name), "") << name;
  }
}

TEST(NamedAlgorithms, AreListedWhereOneIsWrong) {
  const std::string message = message_of<ConfigError>([] {
    InitOptions options = testing::options_for(testing::unique_job(), 0, 1);
    options.algorithm = "fastest";
    init(options);
  });
  for (const char* part :
       {"InitOptions::algorithm", "fastest", "direct", "ring", "tree", "doubling", "aggregator"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Groups go the same way, and operations in flight of different kinds and lengths do not get into
// each other's.
TEST(NamedAlgorithms, GroupsAndOperationsInFlight) {
  for (const char* name : kSpecial) {
    spawn_world(
        4,
        [](World& world) {
          const auto group = world.split(world.rank() % 2);
          constexpr int kCalls = 60;  // more than there are slots
          std::vector<std::vector<float>> sums;
          std::vector<std::vector<float>> told;
          std::vector<Work> works;
          for (int i = 0; i < kCalls; ++i) {
            const std::size_t numel = i % 3 == 0 ? 3 : i % 3 == 1 ? 40'000 : 90'001;
            sums.emplace_back(numel, static_cast<float>(world.rank() + i));
            told.emplace_back(numel, static_cast<float>(world.rank()));
          }
          for (int i = 0; i < kCalls; ++i) {
            Communicator& ranks = i % 2 == 0 ? static_cast<Communicator&>(world) : *group;
            works.push_back(ranks.all_reduce(sums[static_cast<std::size_t>(i)]));
            works.push_back(ranks.broadcast(told[static_cast<std::size_t>(i)], i % ranks.size()));
            if (i % 7 == 0) {
              works.push_back(ranks.barrier());
            }
          }
          for (Work& work : works) {
            work.wait();
          }
          for (int i = 0; i < kCalls; ++i) {
            const bool all = i % 2 == 0;
            const int of_group = world.rank() % 2 + (world.rank() % 2 + 2);
            const float sum = static_cast<float>(all ? 0 + 1 + 2 + 3 + 4 * i : of_group + 2 * i);
            const auto at = static_cast<std::size_t>(i);
            EXPECT_EQ(sums[at], std::vector<float>(sums[at].size(), sum)) << i;
            const int root = all ? i % 4 : world.rank() % 2 + 2 * (i % 2);
            EXPECT_EQ(told[at], std::vector<float>(told[at].size(), static_cast<float>(root))) << i;
          }
        },
        by(name));
  }
}

// Terms that are left out and sums that go on, in the calls that a ring cannot make and an
// aggregator can.
TEST(NamedAlgorithms, SumsWithAbsentTermsKeepTheirOrder) {
  constexpr std::int64_t kNumel = 90'001;
  constexpr int kRanks = 3;
  const Terms terms(Dtype::kFloat32, kNumel, kRanks, {ReduceOp::kSum});
  const std::array<Range, kRanks> absent = {Range{0, 10}, Range{5, 40'000}, Range{39'999, kNumel}};
  for (const char* name : {"ring", "aggregator"}) {
    fork_world(
        kRanks,
        [&](World& world) {
          const Range mine = even_range(kNumel, kRanks, world.rank());
          std::vector<float> sums(static_cast<std::size_t>(mine.size()), 0.1F);
          for (const bool accumulate : {false, true}) {
            world
                .reduce_scatter(
                    ConstSpan(terms.inputs[index(world.rank())].data(), kNumel, Dtype::kFloat32),
                    sums,
                    ReduceOp::kSum,
                    {},
                    {.absent = {absent[index(world.rank())]}, .accumulate = accumulate})
                .wait();
          }
          for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            // Twice the same chain of those that are there, the second time after the first sum.
            float sum = 0.1F;  // which stays where nobody has a term
            for (const bool accumulate : {false, true}) {
              bool begun = accumulate;
              for (std::size_t rank = 0; rank < kRanks; ++rank) {
                if (i >= absent[rank].begin && i < absent[rank].end) {
                  continue;
                }
                const auto term =
                    static_cast<float>(value_of(Dtype::kFloat32, terms.inputs[rank], i));
                sum = begun ? sum + term : term;
                begun = true;
              }
            }
            ASSERT_EQ(sums[static_cast<std::size_t>(i - mine.begin)], sum) << i;
          }
        },
        by(name));
  }
}

TEST(NamedAlgorithms, ARankThatIsKilledInTheMiddleIsNamed) {
  constexpr int kVictim = 1;
  for (const char* name : kSpecial) {
    const std::string job = testing::unique_job();
    const auto body = [&](int rank) {
      InitOptions options = testing::options_for(job, rank, 4);
      options.algorithm = name;
      const auto world = init(options);
      std::vector<float> data(300'000, 1);
      std::vector<float> few(10, 1);
      const auto loop = [&] {
        for (int i = 0;; ++i) {
          Work sum = world->all_reduce(data);
          Work told = world->broadcast(data, i % 4);
          if (rank == kVictim && i == 3) {
            // Some of what it sends has gone, the rest never will.
            static_cast<void>(sum.done());
            raise(SIGKILL);
          }
          world->all_reduce(few).wait();
          sum.wait();
          told.wait();
        }
      };
      try {
        loop();
      } catch (const CommError& error) {
        EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied) << error.what();
        EXPECT_EQ(error.peer(), kVictim) << error.what();
        EXPECT_NE(std::string(error.what()).find("rank 1 (pid"), std::string::npos) << error.what();
        throw;
      }
    };
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 4; ++rank) {
      pids.push_back(
          testing::fork_rank(rank, [&](int each) { EXPECT_THROW(body(each), CommError); }));
    }
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(testing::wait_for(pids[index(rank)]), rank == kVictim ? SIGKILL : 0)
          << name << " rank " << rank;
    }
  }
}

// One of the calls goes through lanes and the other does not, or both do.
TEST(NamedAlgorithms, DifferentCallsAreNamed) {
  for (const char* name : kSpecial) {
    for (const std::size_t numel : {std::size_t{10}, std::size_t{100'000}}) {
      fork_world(
          3,
          [&](World& world) {
            std::vector<float> data(numel, 1);
            const std::string message = message_of<CommError>([&] {
              if (world.rank() == 1) {
                world.broadcast(data, 2).wait();
              } else {
                world.all_reduce(data).wait();
              }
              world.barrier().wait();
            });
            for (const char* part : {"different operations", "all_reduce(sum", "broadcast("}) {
              EXPECT_NE(message.find(part), std::string::npos) << message;
            }
          },
          by(name));
      fork_world(
          3,
          [&](World& world) {
            std::vector<float> data(numel + (world.rank() == 2 ? 30'000 : 0), 1);
            const std::string message = message_of<CommError>([&] {
              world.all_reduce(data).wait();
              world.barrier().wait();
            });
            EXPECT_NE(message.find("different lengths"), std::string::npos) << message;
          },
          by(name));
    }
  }
}

TEST(NamedAlgorithms, WhoSaysNothingIsMissed) {
  fork_world(
      3,
      [](World& world) {
        if (world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3000));
          return;
        }
        std::vector<float> data(100'000, 1);
        const std::string message =
            message_of<CommError>([&] { world.all_reduce(data).wait(Milliseconds(1000)); });
        EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
      },
      by("ring"));
}

}  // namespace
}  // namespace trireme
