// Random collectives, messages and barriers, up to 24 of them in flight, by ranks that are late at
// random: each has the result that it has alone.

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using Values = std::vector<float>;
using Shared = std::shared_ptr<Values>;

// Whole numbers, whose sums are exact.
float value_of(int rank, int call, std::int64_t i) {
  return static_cast<float>((rank * 31 + call * 17 + i) % 13);
}

Shared values_of(int rank, int call, std::int64_t numel) {
  auto values = std::make_shared<Values>(numel);
  for (std::int64_t i = 0; i < numel; ++i) {
    (*values)[static_cast<std::size_t>(i)] = value_of(rank, call, i);
  }
  return values;
}

Shared zeros(std::int64_t numel) {
  return std::make_shared<Values>(numel);
}

struct InFlight {
  std::vector<Work> works;
  std::vector<Shared> memory;
  std::function<float(std::int64_t)> expected;  // of the last memory
};

class Calls {
 public:
  Calls(World& world, unsigned seed) : world_(world), plan_(seed), own_(seed + 7 + rank()) {}

  void run(int count) {
    for (int call = 0; call < count; ++call) {
      if (draw(own_, 10) == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(draw(own_, 20)));
      }
      issue(call);
      for (const int most = 1 + draw(plan_, 24); static_cast<int>(flying_.size()) > most;) {
        finish();
      }
    }
    while (!flying_.empty()) {
      finish();
    }
    EXPECT_EQ(chained_, chained_expected_);
  }

 private:
  static int draw(std::mt19937& random, int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  float sum_of(int call, std::int64_t i) const {
    float sum = 0;
    for (int other = 0; other < size(); ++other) {
      sum += value_of(other, call, i);
    }
    return sum;
  }

  void issue(int call) {
    constexpr std::int64_t kSizes[] = {0, 1, 1000, 8200, 17'000, 70'000, 300'001, 1'200'000};
    const int kind = draw(plan_, 9);
    const std::int64_t numel = kSizes[draw(plan_, 8)];
    const int root = draw(plan_, size());
    const std::int64_t share = numel / size();
    const int me = rank();
    InFlight flight;
    const auto sum = [this, call](std::int64_t i) { return sum_of(call, i); };
    switch (kind) {
      case 0: {
        flight.memory = {values_of(me, call, numel), zeros(even_range(numel, size(), me).size())};
        flight.works.push_back(world_.reduce_scatter(*flight.memory[0], *flight.memory[1]));
        flight.expected = [=, begin = even_range(numel, size(), me).begin](std::int64_t i) {
          return sum(begin + i);
        };
        break;
      }
      case 1:
        flight.memory = {values_of(me, call, share), zeros(share * size())};
        flight.works.push_back(world_.all_gather(*flight.memory[0], *flight.memory[1]));
        flight.expected = [=](std::int64_t i) {
          return value_of(static_cast<int>(i / share), call, i % share);
        };
        break;
      case 2:
        flight.memory = {values_of(me, call, numel)};
        flight.works.push_back(world_.all_reduce(*flight.memory[0]));
        flight.expected = sum;
        break;
      case 3:
        flight.memory = {values_of(me, call, numel)};
        flight.works.push_back(world_.broadcast(*flight.memory[0], root));
        flight.expected = [=](std::int64_t i) { return value_of(root, call, i); };
        break;
      case 4:
        flight.memory = {values_of(me, call, share * size()), zeros(share * size())};
        flight.works.push_back(world_.all_to_all(*flight.memory[0], *flight.memory[1]));
        flight.expected = [=](std::int64_t i) {
          return value_of(static_cast<int>(i / share), call, me * share + i % share);
        };
        break;
      case 5:
        flight.works.push_back(world_.barrier());
        break;
      case 6:
        add_to_chain(call, flight);
        break;
      case 7: {  // the second reads what the first writes
        const Range own = even_range(900'000, size(), me);
        flight.memory = {values_of(me, call, 900'000), zeros(own.size()), zeros(900'000)};
        flight.works.push_back(world_.reduce_scatter(*flight.memory[0], *flight.memory[1]));
        flight.works.push_back(
            world_.all_gather(*flight.memory[1], *flight.memory[2], even_counts(900'000, size())));
        flight.expected = sum;
        break;
      }
      default: {
        const int from = (me + size() - 1) % size();
        flight.memory = {values_of(me, call, numel), zeros(numel)};
        flight.works.push_back(world_.recv(*flight.memory[1], from));
        flight.works.push_back(world_.send(*flight.memory[0], (me + 1) % size()));
        flight.expected = [=](std::int64_t i) { return value_of(from, call, i); };
      }
    }
    flying_.push_back(std::move(flight));
  }

  // Sums that all of these calls add to, one after another.
  void add_to_chain(int call, InFlight& flight) {
    constexpr std::int64_t kNumel = 400'003;
    const Range own = even_range(kNumel, size(), rank());
    const bool first = chained_.empty();
    chained_.resize(own.size());
    chained_expected_.resize(own.size());
    flight.memory = {values_of(rank(), call, kNumel)};
    flight.works.push_back(world_.reduce_scatter(
        *flight.memory[0], chained_, ReduceOp::kSum, {}, {.accumulate = !first}));
    for (std::int64_t i = 0; i < own.size(); ++i) {
      chained_expected_[static_cast<std::size_t>(i)] += sum_of(call, own.begin + i);
    }
  }

  void finish() {
    InFlight& oldest = flying_.front();
    for (Work& work : oldest.works) {
      work.wait();
    }
    if (oldest.expected) {
      const Values& result = *oldest.memory.back();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(result.size()); ++i) {
        wrong += result[static_cast<std::size_t>(i)] != oldest.expected(i) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << "of " << result.size();
    }
    flying_.pop_front();
  }

  World& world_;
  std::mt19937 plan_;  // the same on all ranks
  std::mt19937 own_;
  std::deque<InFlight> flying_;
  Values chained_, chained_expected_;
};

TEST(ManyInFlight, HaveTheResultsThatTheyHaveAlone) {
  for (const unsigned seed : {1U, 2U}) {
    testing::fork_world(3, [&](World& world) {
      Calls(world, seed).run(100);
      world.barrier().wait();
    });
  }
}

// Call 1 is the same everywhere, call 2 is not.
TEST(ManyInFlight, EndAsIfWhatFollowsThemHadNotFailed) {
  testing::fork_world(2, [&](World& world) {
    std::vector<float> in(200'000, 1);
    std::vector<float> out(100'000);
    std::vector<float> small(90'000, 1);
    std::vector<float> large(180'000);
    Work first = world.reduce_scatter(in, out);
    Work second = world.rank() == 1 ? world.all_gather(small, large) : world.all_reduce(large);
    first.wait();
    EXPECT_EQ(out, std::vector<float>(100'000, 2));
    const std::string text = testing::message_of<CommError>([&] { second.wait(); });
    EXPECT_NE(text.find("#2"), std::string::npos) << text;
  });
}

// After wait has thrown, memory is the caller's, also that of messages which had arrived sealed.
TEST(ManyInFlight, WriteNothingAfterAFailure) {
  const std::string job = testing::unique_job();
  testing::fork_ranks(3, [&](int rank) {
    InitOptions options = testing::options_for(job, rank, 3);
    options.encrypt = true;
    auto world = init(options);
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));  // theirs has arrived
      world->abort("on purpose");
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    const Values in(60'000, 1);
    Values first(180'000);
    Values second(180'000);
    Work one = world->all_gather(in, first);
    Work two = world->all_gather(in, second);
    EXPECT_THROW(one.wait(), CommError);
    two.forget();
    std::ranges::fill(first, -7.0F);
    std::ranges::fill(second, -7.0F);
    world.reset();
    EXPECT_EQ(std::ranges::count(first, -7.0F), 180'000);
    EXPECT_EQ(std::ranges::count(second, -7.0F), 180'000);
  });
}

}  // namespace
}  // namespace trireme
