// Stale training against formulas, plain LibTorch and the synchronous engine.

#include "trireme/server/stale_engine.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "average/loose_training.h"
#include "trireme/core/error.h"

namespace trireme::stale_engine_test {
namespace {

using detail::concat;
using testing::flat;
using testing::in_loose_world;
using testing::LooseNet;
using testing::LooseNetImpl;
using testing::message_of;
using testing::same_bits;

using World = std::shared_ptr<trireme::World>;

// w of 70 elements and the loss |w|^2 / 2, whose gradient is w.
struct SquareImpl : torch::nn::Module {
  torch::Tensor w;
  explicit SquareImpl(double value = 1) {
    w = register_parameter("w", torch::full({70}, value, torch::kFloat));
  }
  torch::Tensor forward() { return 0.5 * w.pow(2).sum(); }
};
TORCH_MODULE(Square);

// Now and then a rank is slow, another one in each run.
void dawdle(int rank, int step, int run = 0) {
  std::this_thread::sleep_for(
      std::chrono::microseconds((rank * 7 + step * 5 + run * 11) % 13 * 200));
}

std::vector<double> squares(const World& world, double rate, const Stale& stale, int steps) {
  Square model(world->rank() == 0 ? 1 : 5);  // rank 0's becomes everyone's
  StaleEngine engine(model, Sgd({.lr = rate}), stale, world);
  std::vector<double> seen;
  for (int step = 0; step < steps && engine.computes(); ++step) {
    seen.push_back(model->w[69].item<double>());
    dawdle(world->rank(), step);
    engine.backward(engine.forward());
    EXPECT_TRUE(engine.step());
  }
  engine.finish();
  seen.push_back(model->w[0].item<double>());
  return seen;
}

// The recurrence w' = w - a w(-s), where weights of before the beginning are those of the
// beginning.
std::vector<double> recurrence(double rate, std::int64_t bound, int steps) {
  std::vector<double> w = {1};
  for (int step = 0; step < steps; ++step) {
    w.push_back(w.back() -
                rate * w[static_cast<std::size_t>(std::max<std::int64_t>(0, step - bound))]);
  }
  return w;
}

TEST(StaleEngine, ClockOrderIsTheRecurrence) {
  for (const std::int64_t bound : {0, 1, 3}) {
    for (const int servers : {0, 1}) {
      SCOPED_TRACE(concat("bound ", bound, ", servers ", servers));
      const auto expected = recurrence(0.25, bound, 9);
      in_loose_world(3, [&](const World& world) {
        const auto seen = squares(world, 0.25, {.bound = bound, .servers = servers}, 9);
        EXPECT_EQ(seen.back(), expected.back());
        for (std::size_t step = 0; step + 1 < seen.size(); ++step) {
          EXPECT_EQ(seen[step],
                    expected[static_cast<std::size_t>(
                        std::max<std::int64_t>(0, static_cast<std::int64_t>(step) - bound))])
              << "step " << step;
        }
      });
    }
  }
}

// It is stable if and only if a < 2 sin(pi / (2 (2 s + 1))).
TEST(StaleEngine, ClockOrderIsStableUpToTheLimitOfTheRecurrence) {
  in_loose_world(2, [&](const World& world) {
    for (const std::int64_t bound : {0, 2}) {
      const double limit = 2 * std::sin(M_PI / (2 * (2 * static_cast<double>(bound) + 1)));
      EXPECT_LT(std::abs(squares(world, 0.9 * limit, {.bound = bound}, 200).back()), 0.1);
      EXPECT_GT(std::abs(squares(world, 1.1 * limit, {.bound = bound}, 200).back()), 10);
    }
  });
}

std::vector<float> trained(const World& world, const Stale& stale, int steps, int run = 0) {
  LooseNet model(static_cast<std::uint64_t>(5 + world->rank()));
  StaleEngine engine(model, Sgd({.lr = 0.125, .momentum = 0.5}), stale, world);
  for (int step = 0; step < steps && engine.computes(); ++step) {
    dawdle(world->rank(), step, run);
    engine.backward(testing::loose_loss(
        [&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step, 0));
    engine.step();
  }
  engine.finish();
  return flat(model->parameters());
}

// By LibTorch, in one process.
std::vector<float> reference(int workers, std::int64_t bound, int steps) {
  LooseNet model;
  std::vector<torch::Tensor> momenta;
  std::vector<std::vector<torch::Tensor>> history;  // weights, by step
  const auto copy = [&] {
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& parameter : model->parameters()) {
      all.push_back(parameter.detach().clone());
    }
    return all;
  };
  const torch::NoGradGuard no_grad;
  const auto put = [&](const std::vector<torch::Tensor>& values) {
    for (std::size_t p = 0; p < values.size(); ++p) {
      model->parameters()[p].copy_(values[p]);
    }
  };
  for (int step = 0; step < steps; ++step) {
    history.push_back(copy());
    put(history[static_cast<std::size_t>(std::max<std::int64_t>(0, step - bound))]);
    std::vector<torch::Tensor> sums;
    for (int worker = 0; worker < workers; ++worker) {
      {
        const torch::AutoGradMode grad(true);
        testing::loose_loss(
            [&](const torch::Tensor& x) { return model->forward(x); }, worker, step, 0)
            .backward();
      }
      std::size_t at = 0;
      for (const torch::Tensor& parameter : model->parameters()) {
        if (parameter.requires_grad()) {
          if (worker == 0) {
            sums.push_back(parameter.grad().clone());
          } else {
            sums[at] += parameter.grad();
          }
          ++at;
          parameter.mutable_grad().reset();
        }
      }
    }
    put(history.back());
    std::size_t at = 0;
    for (torch::Tensor parameter : model->parameters()) {
      if (parameter.requires_grad()) {
        if (step == 0) {
          momenta.push_back(torch::zeros_like(sums[at]));
        }
        momenta[at].mul_(0.5).add_(sums[at] / workers);
        parameter.sub_(momenta[at] * 0.125);
        ++at;
      }
    }
  }
  return flat(model->parameters());
}

TEST(StaleEngine, ClockOrderIsAPlainLoopWhoeverIsSlow) {
  for (const std::int64_t bound : {0, 1, 4}) {
    for (const int servers : {0, 2}) {
      SCOPED_TRACE(concat("bound ", bound, ", servers ", servers));
      const auto expected = reference(2, bound, 12);
      in_loose_world(2 + servers, [&](const World& world) {
        for (const int run : {0, 1}) {
          EXPECT_TRUE(
              same_bits(trained(world, {.bound = bound, .servers = servers}, 12, run), expected));
        }
      });
    }
  }
}

// Also with moments, half precision and moving averages.
TEST(StaleEngine, BoundZeroIsTheSynchronousEngine) {
  in_loose_world(3, [&](const World& world) {
    for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
      const EngineOptions options{.clip_value = 0.01, .ema_decay = 0.5, .precision = precision};
      const AdamW adam({.lr = 1e-2});
      LooseNet exact_model;
      Engine exact(exact_model, adam, options, world);
      LooseNet model;
      StaleEngine engine(model, adam, {.engine = options}, world);
      for (int step = 0; step < 6; ++step) {
        const auto train = [&](auto& its) {
          its.backward(testing::loose_loss(
              [&](const torch::Tensor& x) { return its.forward(x); }, world->rank(), step, 0));
          its.step();
        };
        train(exact);
        train(engine);
      }
      EXPECT_TRUE(same_bits(flat(model->parameters()), flat(exact_model->parameters())));
      EXPECT_TRUE(
          torch::equal(engine.worker().average("first.weight"), exact.average("first.weight")));
      engine.finish();
    }
  });
}

std::filesystem::path empty_folder(const std::string& name) {
  auto folder = std::filesystem::temp_directory_path() / concat(name, "-", getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

// Records are read as text here: each push once, in its worker's order, and nobody ahead of the
// slowest by more than the bound.
void check_trace(const std::filesystem::path& file, int workers, int steps, std::int64_t bound) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line) && line != "all 0") {
  }
  std::vector<std::int64_t> applied(static_cast<std::size_t>(workers));
  std::int64_t answers = 0;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string what;
    std::size_t worker = 0;
    std::int64_t clock = 0;
    words >> what >> worker >> clock;
    if (what == "apply") {
      EXPECT_EQ(applied.at(worker)++, clock);
    } else if (what == "answer") {
      ++answers;
      EXPECT_LT(clock, applied.at(worker));
      if (bound >= 0) {
        EXPECT_LE(clock + 1 - *std::min_element(applied.begin(), applied.end()), bound) << line;
      }
    }
  }
  EXPECT_EQ(applied, std::vector<std::int64_t>(static_cast<std::size_t>(workers), steps));
  EXPECT_EQ(answers, workers * steps);
}

TEST(StaleEngine, ArrivalsAreReplayed) {
  const auto folder = empty_folder("stale-arrivals");
  for (const std::int64_t bound : {Stale::kNoBound, std::int64_t{2}}) {
    for (const int servers : {0, 1}) {
      SCOPED_TRACE(concat("bound ", bound, ", servers ", servers));
      const int workers = 3 - servers;
      const Stale recorded{
          .bound = bound, .order = Order::kArrival, .servers = servers, .record = folder / "first"};
      in_loose_world(3, [&](const World& world) {
        const auto first = trained(world, recorded, 20, 0);
        Stale replayed = recorded;
        replayed.record = folder / "second";
        replayed.replay = recorded.record;
        EXPECT_TRUE(same_bits(trained(world, replayed, 20, 5), first));
        replayed.bound = 7;
        EXPECT_NE(
            message_of<ConfigError>([&] { trained(world, replayed, 20); }).find("of another run"),
            std::string::npos);
        replayed.bound = bound;
        if (world->rank() == 0) {
          EXPECT_FALSE(std::filesystem::exists(folder / "none"));
        }
        replayed.replay = folder / "none";
        EXPECT_NE(message_of<ConfigError>([&] {
                    trained(world, replayed, 20);
                  }).find("not a record of arrivals"),
                  std::string::npos);
      });
      for (int rank = servers == 0 ? 0 : workers; rank < 3; ++rank) {
        check_trace(folder / "first" / concat("rank-", rank, ".txt"), workers, 20, bound);
        check_trace(folder / "second" / concat("rank-", rank, ".txt"), workers, 20, bound);
      }
      std::filesystem::remove_all(folder);
    }
  }
}

// With a save after some step, or where the run that is followed had one.
std::vector<float> trained_and_saved(
    const World& world, const Stale& stale, int steps, int saved_after, int run = 0) {
  LooseNet model(static_cast<std::uint64_t>(5 + world->rank()));
  StaleEngine engine(model, AdamW({.lr = 1e-2}), stale, world);
  const auto& replayed = engine.replayed();
  for (int step = 1; step <= steps; ++step) {
    if (engine.computes()) {
      dawdle(world->rank(), step, run);
      engine.backward(testing::loose_loss(
          [&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step, 0));
      engine.step();
    }
    if (replayed && std::ranges::count(replayed->beginnings, step) > 0) {
      engine.go_on_from_newest();
    } else if (step == saved_after) {
      engine.state();
    }
  }
  engine.finish();
  return flat(model->parameters());
}

// A run that is saved goes on from there with other weights: also after Ctrl-C, in any step.
TEST(StaleEngine, AReplayBeginsAnewWhereItsRunDid) {
  const auto folder = empty_folder("stale-beginnings");
  for (const int servers : {0, 1}) {
    const Stale recorded{.bound = Stale::kNoBound,
                         .order = Order::kArrival,
                         .servers = servers,
                         .record = folder / "first"};
    in_loose_world(3, [&](const World& world) {
      const auto first = trained_and_saved(world, recorded, 9, 4);
      Stale replayed = recorded;
      replayed.record.clear();
      replayed.replay = recorded.record;
      EXPECT_TRUE(same_bits(trained_and_saved(world, replayed, 9, -1, 5), first));
      LooseNet model;
      StaleEngine engine(model, AdamW({.lr = 1e-2}), replayed, world);
      ASSERT_TRUE(engine.replayed().has_value());
      EXPECT_EQ(engine.replayed()->steps, 9);
      EXPECT_FALSE(engine.replayed()->cut);
      EXPECT_EQ(engine.replayed()->beginnings, (std::vector<std::int64_t>{0, 4}));
      engine.finish();
      replayed.subject = "another";
      EXPECT_NE(
          message_of<ConfigError>([&] { trained(world, replayed, 9); }).find("of another run"),
          std::string::npos);
    });
    std::filesystem::remove_all(folder);
  }
}

// Of a run that was killed, each owner has recorded as much as came to it.
TEST(StaleEngine, AReplayEndsWithTheStepThatAllOwnersHave) {
  const auto folder = empty_folder("stale-killed");
  const Stale recorded{
      .bound = Stale::kNoBound, .order = Order::kArrival, .record = folder / "first"};
  in_loose_world(3, [&](const World& world) { trained(world, recorded, 12); });
  std::int64_t whole = 12;
  for (int rank = 0; rank < 3; ++rank) {
    const auto file = folder / "first" / concat("rank-", rank, ".txt");
    std::ifstream in(file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      lines.push_back(line);
    }
    lines.resize(lines.size() - static_cast<std::size_t>(7 * rank));
    std::ofstream out(file);
    std::vector<std::int64_t> answered(3);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const bool torn = rank == 1 && i + 1 == lines.size();
      out << (torn ? lines[i].substr(0, 3) : lines[i] + "\n");
      std::istringstream words(torn ? "" : lines[i]);
      std::string what;
      std::size_t worker = 0;
      if (std::int64_t clock = 0; words >> what >> worker >> clock && what == "answer") {
        answered.at(worker) = clock + 1;
      }
    }
    whole = std::min(whole, *std::ranges::min_element(answered));
  }
  ASSERT_GT(whole, 0);
  ASSERT_LT(whole, 12);
  in_loose_world(3, [&](const World& world) {
    Stale replayed = recorded;
    replayed.record.clear();
    replayed.replay = recorded.record;
    const auto once = trained(world, replayed, static_cast<int>(whole), 5);
    EXPECT_TRUE(same_bits(trained(world, replayed, static_cast<int>(whole), 9), once));
    LooseNet model;
    StaleEngine engine(model, Sgd({.lr = 0.125, .momentum = 0.5}), replayed, world);
    EXPECT_EQ(engine.replayed()->steps, whole);
    engine.finish();
  });
  std::filesystem::remove_all(folder);
}

// A rank with less data does not hold up the others.
TEST(StaleEngine, EndsWithUnevenData) {
  for (const Order order : {Order::kClock, Order::kArrival}) {
    in_loose_world(3, [&](const World& world) {
      Square model;
      StaleEngine engine(model, Sgd({.lr = 0.25}), {.bound = 1, .order = order}, world);
      for (int step = 0; step < 2 + 3 * world->rank(); ++step) {
        engine.backward(engine.forward());
        engine.step();
      }
      engine.finish();
      const StaleUse use = engine.use();
      EXPECT_EQ(std::accumulate(use.staleness.begin(), use.staleness.end(), std::int64_t{0}) % 15,
                0);
      std::vector<float> values = {model->w[3].item<float>(), -model->w[3].item<float>()};
      world->all_reduce(values, ReduceOp::kMax).wait();
      EXPECT_EQ(values[0], -values[1]);  // everyone has the same weights
    });
  }
}

// Of one rank's data nothing, or less than of the others'.
TEST(StaleEngine, ReplaysUnevenData) {
  for (const int least : {0, 2}) {
    const auto folder = empty_folder("stale-uneven");
    const Stale recorded{.bound = 1, .order = Order::kArrival, .record = folder / "first"};
    const auto run = [&](const World& world, const Stale& stale) {
      Square model;
      StaleEngine engine(model, Sgd({.lr = 0.25}), stale, world);
      for (int step = 0; step < least + 3 * world->rank(); ++step) {
        dawdle(world->rank(), step, stale.replay.empty() ? 0 : 5);
        engine.backward(engine.forward());
        engine.step();
      }
      engine.finish();
      return flat(model->parameters());
    };
    in_loose_world(3, [&](const World& world) {
      const auto first = run(world, recorded);
      Stale replayed = recorded;
      replayed.record.clear();
      replayed.replay = recorded.record;
      EXPECT_TRUE(same_bits(run(world, replayed), first));
    });
  }
}

TEST(StaleEngine, SaysHowStaleGradientsAre) {
  in_loose_world(2, [&](const World& world) {
    Square model;
    StaleEngine engine(model, Sgd({.lr = 0.25}), {.bound = 2}, world);
    for (int step = 0; step < 6; ++step) {
      engine.backward(engine.forward());
      engine.step();
    }
    engine.finish();
    const StaleUse use = engine.use();
    // Of the two owners and the two workers: steps 0, 1, and 2 to 5.
    EXPECT_EQ(use.staleness[0], 4);
    EXPECT_EQ(use.staleness[1], 4);
    EXPECT_EQ(use.staleness[2], 16);
    EXPECT_EQ(use.held_up.size(), 2U);
  });
}

void step_square(StaleEngine<SquareImpl>& engine, int steps) {
  for (int step = 0; step < steps; ++step) {
    engine.backward(engine.forward());
    engine.step();
  }
}

TEST(StaleEngine, NamesARankThatIsLost) {
  for (const int servers : {0, 1}) {
    in_loose_world(3, [&](const World& world) {
      Square model;
      StaleEngine engine(model, Sgd({.lr = 0.25}), {.bound = 1, .servers = servers}, world);
      if (world->rank() == 1) {
        step_square(engine, 3);
        _exit(0);  // without leaving
      }
      const auto lost = [&] {
        if (engine.computes()) {
          step_square(engine, 1000);
        }
        engine.finish();
      };
      EXPECT_NE(message_of<CommError>(lost).find("rank 1"), std::string::npos);
    });
  }
}

TEST(StaleEngine, NamesARankThatDoesNotGoOn) {
  testing::fork_ranks(3, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    InitOptions options = testing::options_for(job, rank, 3);
    options.timeout = Milliseconds(2000);
    const World world = init(options);
    Square model;
    StaleEngine engine(model, Sgd({.lr = 0.25}), {.bound = 1}, world);
    if (rank == 2) {
      step_square(engine, 3);
      std::this_thread::sleep_for(std::chrono::seconds(5));
      return;
    }
    const std::string message = message_of<CommError>([&] { step_square(engine, 1000); });
    EXPECT_NE(message.find("rank 2 has taken 3 steps"), std::string::npos) << message;
  });
}

// A stopped worker is not lost: the others go on up to the bound, and name it.
TEST(StaleEngine, StopsAtTheBoundAndNamesAStoppedRank) {
  constexpr int kRanks = 4;  // the last one is a server
  testing::fork_ranks(kRanks, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    InitOptions options = testing::options_for(job, rank, kRanks);
    options.timeout = Milliseconds(2000);
    const World world = init(options);
    std::vector<std::int64_t> processes(kRanks);
    world->all_gather(std::vector<std::int64_t>{getpid()}, processes).wait();
    Square model;
    StaleEngine engine(model, Sgd({.lr = 0.25}), {.bound = 2, .servers = 1}, world);
    if (rank == 2) {
      step_square(engine, 3);
      raise(SIGSTOP);
      return;
    }
    const std::string message = message_of<CommError>([&] {
      step_square(engine, engine.computes() ? 1000 : 0);
      engine.finish();
    });
    EXPECT_NE(message.find("rank 2 has taken 3 steps"), std::string::npos) << message;
    if (engine.computes()) {
      // Step 5 is of the weights after 3 steps, and step 6 would be of those after 4.
      EXPECT_EQ(engine.steps(), 6);
    }
    kill(static_cast<pid_t>(processes[2]), SIGCONT);
  });
}

TEST(StaleEngine, RefusesWhatItCannotDo) {
  in_loose_world(2, [&](const World& world) {
    const auto refusal = [&](const Stale& stale, const Optimizer& optimizer = Sgd({.lr = 0.1})) {
      return message_of<ConfigError>(
          [&] { StaleEngine engine(Square(), optimizer, stale, world); });
    };
    const auto has = [](const std::string& text, const char* words) {
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    has(refusal({.bound = -2}), "Stale::bound");
    has(refusal({.bound = Stale::kNoBound}), "Order::kArrival");
    has(refusal({.servers = 2}), "Stale::servers");
    has(refusal({.record = "x"}), "Order::kArrival");
    has(refusal({.engine = {.zero = 3}}), "stage 3");
    has(refusal({.engine = {.compress = make_compressor("int8")}}), "EngineOptions::compress");
    has(refusal({.engine = {.micro_batches = 3}}), "multiple");
    has(refusal({}, Lamb({.lr = 0.1})), "LAMB");
    has(refusal({.replicas = 2}), "Stale::replicas: expected 0 or 1, found 2");
    has(refusal({.replicas = 1}),
        world->machines() == 1 ? "Stale::replicas: expected a launcher"
                               : "Stale::replicas: expected a world on one machine");
    has(refusal({.order = Order::kArrival, .replicas = 1}), "Order::kArrival");
    has(refusal({.bound = world->rank()}), "differs between ranks");
  });
}

TEST(StaleEngine, RefusesGradientsThatAreNotFinite) {
  in_loose_world(1, [&](const World& world) {
    Square model;
    StaleEngine engine(model, Sgd({.lr = 0.25}), {}, world);
    engine.backward(engine.forward() * std::numeric_limits<double>::infinity());
    EXPECT_NE(message_of<GradientError>([&] { engine.step(); }).find("parameter w"),
              std::string::npos);
    step_square(engine, 1);
    EXPECT_EQ(model->w[0].item<double>(), 0.75);
    engine.finish();
  });
}

// Each rank's own gradient is bounded: here 1 / 4 of it is sent.
TEST(StaleEngine, ClipsEachRanksGradient) {
  in_loose_world(2, [&](const World& world) {
    Square model;
    const double bound = std::sqrt(70.0) / 4;
    StaleEngine engine(model, Sgd({.lr = 1}), {.engine = {.clip_norm = bound}}, world);
    step_square(engine, 1);
    EXPECT_NEAR(engine.worker().gradient_norm(), std::sqrt(70.0), 1e-6);
    EXPECT_NEAR(model->w[0].item<double>(), 0.75, 1e-6);
    engine.finish();
  });
}

}  // namespace
}  // namespace trireme::stale_engine_test
