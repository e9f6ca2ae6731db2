// The paths of gradients, fed by hand: what arrives in the sums is the chain over the
// micro-batches, whatever the stage, the rounds and the buckets.

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "parallel/gradient/bucket_order.h"
#include "parallel/gradient/bucket_path.h"
#include "parallel/gradient/gradient_rounds.h"
#include "parallel/memory/bucket_ring.h"
#include "parallel/memory/runs.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme::detail::gradient_pieces_test {
namespace {

namespace nn = torch::nn;
using testing::fork_world;
using testing::message_of;
using torch::Tensor;

struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    register_module("first", nn::Linear(7, 30));
    register_module("rows", nn::Embedding(nn::EmbeddingOptions(11, 3).sparse(true)));
    register_module("last", nn::Linear(30, 5));
  }
};
TORCH_MODULE(Net);

// What an engine's parts share, without the engine.
struct Setting {
  Setting(World& world, const EngineOptions& engine_options)
      : ranks(world), options(engine_options) {
    plan.parameters = list_parameters(*model);
    plan.complete(*model, options, ranks, ranks);
  }
  PartContext context() { return {ranks, ranks, plan, options, *ledger}; }
  std::size_t named(const std::string& name) const {
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
      if (plan.parameters[i].name == name) {
        return i;
      }
    }
    throw Error(name);
  }
  std::vector<bool> all() const { return std::vector<bool>(plan.parameters.size(), true); }

  Net model;
  World& ranks;
  EngineOptions options;
  std::shared_ptr<MemoryLedger> ledger = MemoryLedger::create();
  ModelPlan plan;
};

// The gradient of a parameter in micro-batch `number`; magnitudes so mixed that the order of a sum
// shows in its bits. Some are absent.
bool has_gradient(std::size_t parameter, std::int64_t number) {
  return (parameter + static_cast<std::size_t>(number)) % 4 != 3;
}
Tensor gradient_of(const Parameter& parameter, std::size_t index, std::int64_t number) {
  auto generator =
      at::detail::createCPUGenerator(1000 * index + static_cast<std::uint64_t>(number));
  const Tensor values = torch::randn(parameter.sizes, generator, torch::kFloat);
  return values * torch::pow(10, torch::randint(-6, 6, parameter.sizes, generator, torch::kFloat));
}

// ((g0 + g1) + g2) + ..., of those that there are; undefined where there is none.
Tensor chain_of(const Parameter& parameter, std::size_t index, std::int64_t micro_batches) {
  Tensor sum;
  for (std::int64_t number = 0; number < micro_batches; ++number) {
    if (has_gradient(index, number)) {
      const Tensor more = gradient_of(parameter, index, number);
      sum = sum.defined() ? sum + more : more;
    }
  }
  return sum;
}

// One step of `rounds` micro-batches on every rank.
const Agreement& run_step(Setting& setting, GradientRounds& gradients, std::int64_t rounds) {
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t number = round * setting.ranks.size() + setting.ranks.rank();
    gradients.begin_round(round + 1 == rounds, setting.all());
    for (std::size_t i = setting.plan.parameters.size(); i-- > 0;) {
      if (has_gradient(i, number)) {
        const Tensor dense = gradient_of(setting.plan.parameters[i], i, number);
        gradients.add(i, setting.plan.parameters[i].sparse ? dense.to_sparse(1) : dense);
      }
    }
    gradients.end_round({.took_part = true, .rate = {0.5, 1}});
  }
  return gradients.finish();
}

// This rank's part of the sums is that of `expected`, by parameter (undefined: not used).
void expect_sums(const Setting& setting,
                 const GradientRounds& gradients,
                 const Agreement& agreement,
                 const std::vector<Tensor>& expected) {
  const ModelPlan& plan = setting.plan;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    ASSERT_EQ(agreement.used[i], expected[i].defined()) << plan.parameters[i].name;
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const Piece& piece : plan.units[u].layout.pieces(plan.ownership.mine(u))) {
      const Tensor& whole = expected[plan.parameter_of(u, piece)];
      if (whole.defined()) {
        const Tensor spread = torch::empty({piece.numel});
        ConstSpan run = run_of(spread);
        if (plan.units[u].sparse) {
          gradients.sums().rows(u).copy({piece.offset, piece.offset + piece.numel}, run_of(spread));
        } else {
          run = gradients.sums().of_owner(u, piece);
        }
        const auto* values = static_cast<const float*>(whole.const_data_ptr()) + piece.begin;
        EXPECT_EQ(std::memcmp(run.bytes(), values, run.size_bytes()), 0)
            << plan.parameters[plan.parameter_of(u, piece)].name;
      }
    }
  }
}

std::vector<Tensor> chains(const Setting& setting, std::int64_t micro_batches) {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < setting.plan.parameters.size(); ++i) {
    all.push_back(chain_of(setting.plan.parameters[i], i, micro_batches));
  }
  return all;
}

TEST(GradientRounds, SumsAreOneChainOverTheMicroBatchesAtEveryStage) {
  for (const int size : {1, 2, 3}) {
    fork_world(size, [](World& world) {
      at::set_num_threads(1);
      for (int stage = 0; stage <= 3; ++stage) {
        for (const std::int64_t rounds : {1, 3}) {
          SCOPED_TRACE(concat("stage ", stage, ", ", rounds, " rounds"));
          Setting setting(world, {.zero = stage, .bucket_bytes = 256, .bucket_count = 2});
          GradientRounds gradients(setting.context(), rounds);
          for (int step = 0; step < 3; ++step) {  // the order of buckets is learned after the first
            const Agreement& agreement = run_step(setting, gradients, rounds);
            EXPECT_EQ(agreement.micro_batches, rounds * world.size());
            expect_sums(setting, gradients, agreement, chains(setting, rounds * world.size()));
            gradients.end_step(StepOutcome::kUpdated);
          }
        }
      }
    });
  }
}

TEST(GradientRounds, LocalSumsFirstAreAddedUpInRankOrder) {
  constexpr std::int64_t kRounds = 3;
  fork_world(3, [](World& world) {
    at::set_num_threads(1);
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(stage);
      Setting setting(world,
                      {.zero = stage, .sum_order = SumOrder::kLocalFirst, .bucket_bytes = 256});
      GradientRounds gradients(setting.context(), 1);
      std::vector<Tensor> expected;
      for (std::size_t i = 0; i < setting.plan.parameters.size(); ++i) {
        Tensor sum;
        for (int rank = 0; rank < world.size(); ++rank) {
          Tensor local;
          for (std::int64_t round = 0; round < kRounds; ++round) {
            const std::int64_t number = round * world.size() + rank;
            if (has_gradient(i, number)) {
              const Tensor more = gradient_of(setting.plan.parameters[i], i, number);
              local = local.defined() ? local + more : more;
            }
          }
          if (local.defined()) {
            sum = sum.defined() ? sum + local : local;
          }
        }
        expected.push_back(sum);
      }
      for (int step = 0; step < 2; ++step) {
        const Agreement& agreement = run_step(setting, gradients, kRounds);
        expect_sums(setting, gradients, agreement, expected);
        gradients.end_step(StepOutcome::kUpdated);
      }
    }
  });
}

TEST(GradientRounds, AHookSeesZerosWhereNothingCame) {
  for (const int size : {1, 2}) {
    fork_world(size, [](World& world) {
      at::set_num_threads(1);
      for (int stage = 0; stage <= 2; stage += 2) {
        for (const std::int64_t rounds : {1, 2}) {
          SCOPED_TRACE(concat("stage ", stage, ", ", rounds, " rounds"));
          std::int64_t calls = 0;
          EngineOptions options{.zero = stage, .bucket_bytes = 256};
          options.gradient_hook = [&](const GradientBucket& bucket) {
            ++calls;
            Tensor sum = bucket.values.clone();
            bucket.ranks.all_reduce(sum).wait();
            return sum;
          };
          Setting setting(world, options);
          GradientRounds gradients(setting.context(), rounds);
          for (int step = 0; step < 2; ++step) {
            calls = 0;
            const Agreement& agreement = run_step(setting, gradients, rounds);
            EXPECT_GT(calls, 0);
            // Zeros are terms of a hook's sum: equal to the chain but for the sign of zero.
            for (std::size_t u = 0; u < setting.plan.units.size(); ++u) {
              for (const Piece& piece :
                   setting.plan.units[u].layout.pieces(setting.plan.ownership.mine(u))) {
                const std::size_t p = setting.plan.parameter_of(u, piece);
                if (!agreement.used[p] || setting.plan.parameters[p].sparse) {
                  continue;
                }
                const Tensor chain =
                    chain_of(setting.plan.parameters[p], p, rounds * world.size()).flatten();
                const ConstSpan run = gradients.sums().of_owner(u, piece);
                const auto* sums = reinterpret_cast<const float*>(run.bytes());
                for (std::int64_t i = 0; i < piece.numel; ++i) {
                  const float term = chain[piece.begin + i].item<float>();
                  EXPECT_NEAR(sums[i], term, 1e-5 * std::abs(term) + 1e-30);
                }
              }
            }
            gradients.end_step(StepOutcome::kUpdated);
          }
        }
      }
    });
  }
}

TEST(GradientRounds, OneGradientThatIsNotFiniteIsKnownEverywhere) {
  fork_world(2, [](World& world) {
    Setting setting(world, {.zero = 1});
    GradientRounds gradients(setting.context(), 1);
    const std::size_t bad = setting.named("last.bias");
    gradients.begin_round(true, setting.all());
    for (std::size_t i = 0; i < setting.plan.parameters.size(); ++i) {
      Tensor gradient = torch::ones(setting.plan.parameters[i].sizes);
      if (i == bad && world.rank() == 1) {
        gradient[2] = INFINITY;
      }
      gradients.add(i, setting.plan.parameters[i].sparse ? gradient.to_sparse(1) : gradient);
    }
    gradients.end_round({.took_part = true});
    const Agreement& agreement = gradients.finish();
    EXPECT_EQ(agreement.bad_rank, 1);
    EXPECT_EQ(agreement.bad_parameter, bad);
    gradients.end_step(StepOutcome::kDropped);
    // A second gradient in one round, and one that nothing leads to, are refused by name.
    gradients.begin_round(true, setting.all());
    const Tensor one = torch::ones(setting.plan.parameters[bad].sizes);
    gradients.add(bad, one);
    EXPECT_NE(message_of<ConfigError>([&] { gradients.add(bad, one); }).find("two gradients"),
              std::string::npos);
    gradients.end_round({.given_up = true});
    EXPECT_EQ(gradients.finish().given_up_rank, 0);
    gradients.end_step(StepOutcome::kGivenUp);
  });
}

// A compressor as an example of what a path can be: it sends whole numbers only and keeps the rest
// for the next step, by parameter, in checkpoints, and only of steps that were taken.
class FloorPath final : public BucketPath {
 public:
  FloorPath(const PartContext& context, GradientSums& sums)
      : BucketPath(context, sums, /*launches=*/true) {
    for (const Unit& unit : context.plan.units) {
      kept_.emplace_back(static_cast<std::size_t>(unit.layout.total_numel()), 0.0F);
    }
  }

  void begin_round(const Round& round) override {
    if (round.number == 0) {
      next_ = kept_;  // which a checkpoint may have been read into
    }
    BucketPath::begin_round(round);
  }

  void end_step(StepOutcome outcome) override {
    if (outcome == StepOutcome::kUpdated) {
      kept_ = next_;
    }
    BucketPath::end_step(outcome);
  }

  void describe(StateView& view, bool /*saved*/) override {
    for (int rank = 0; rank < context_.ranks.size(); ++rank) {
      for (std::size_t p = 0; p < context_.plan.parameters.size(); ++p) {
        const Parameter& parameter = context_.plan.parameters[p];
        view.tensors.push_back(
            {concat("residual.", rank), parameter.name, Dtype::kFloat32, parameter.sizes, {}});
        if (rank == context_.ranks.rank()) {
          float* first =
              kept_[context_.plan.places[p].unit].data() + context_.plan.range_of(p).begin;
          view.slices.push_back(
              {view.tensors.size() - 1, {0, parameter.numel}, reinterpret_cast<std::byte*>(first)});
        }
      }
    }
  }

 protected:
  void launch(const Ready& ready) override {
    const Ready filled = with_memory(ready);
    const Bucket& b = bucket(ready.bucket);
    std::vector<char> there(static_cast<std::size_t>(b.range.size()), 0);
    for (const Piece& piece : b.pieces) {
      std::fill_n(there.begin() + (piece.offset - b.range.begin), piece.numel, 1);
    }
    for (const Range& absent : ready.absent) {
      std::fill(there.begin() + absent.begin, there.begin() + absent.end, 0);
    }
    auto* values = reinterpret_cast<float*>(filled.memory.bytes());
    float* rest = next_[b.unit].data() + b.range.begin;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const float all = there[i] ? values[i] + rest[i] : 0;
      values[i] = std::floor(all);
      rest[i] = there[i] ? all - values[i] : rest[i];
    }
    begun(filled, context_.ranks.all_reduce(filled.memory));  // while backward goes on
  }
  void finished(std::size_t index, const Span& memory) override {
    const Range own = own_part(index);
    const std::int64_t begin = bucket(index).range.begin;
    const Span from = part_of(memory, {own.begin - begin, own.end - begin});
    device::host().copy(sums_.at(bucket(index).unit, own), from);
  }

 private:
  std::vector<std::vector<float>> kept_;  // by unit
  std::vector<std::vector<float>> next_;  // with what this step leaves
};

// With numbers that are multiples of 1/8, all of it is exact: what was sent of a rank is the floor
// of all its gradients, and what is left is the rest.
TEST(GradientPath, ACompressorKeepsItsRestInCheckpointsAndOnlyOfStepsThatWereTaken) {
  struct DenseImpl : nn::Module {
    DenseImpl() { register_module("dense", nn::Linear(9, 21)); }
  };
  fork_world(2, [](World& world) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(stage);
      const auto model = std::make_shared<DenseImpl>();
      const EngineOptions options{.zero = stage, .bucket_bytes = 256};
      const auto ledger = MemoryLedger::create();
      ModelPlan plan;
      plan.parameters = list_parameters(*model);
      plan.complete(*model, options, world, world);
      const PartContext context{world, world, plan, options, *ledger};
      GradientSums sums(context);
      auto path = std::make_unique<FloorPath>(context, sums);
      path->set_rounds(1);
      // Of step t and rank r; the bias has none on rank 1 in step 2.
      const auto gradient = [&](std::size_t p, int step, int rank) {
        const bool absent = p == 1 && rank == 1 && step == 2;
        const Tensor numbers = torch::arange(plan.parameters[p].numel, torch::kFloat);
        const Tensor eighths = torch::fmod(numbers * (step + 3) + 5 * rank, 23) - 9;
        return absent ? Tensor() : (eighths / 8).reshape(plan.parameters[p].sizes);
      };
      const auto total = [&](std::size_t p, const std::vector<int>& taken, int rank) {
        Tensor sum = torch::zeros(plan.parameters[p].sizes);
        for (const int step : taken) {
          const Tensor more = gradient(p, step, rank);
          sum = more.defined() ? sum + more : sum;
        }
        return sum;
      };
      std::vector<Tensor> received(2);
      std::vector<int> taken;
      const StepOutcome outcomes[] = {StepOutcome::kUpdated,
                                      StepOutcome::kDropped,
                                      StepOutcome::kUpdated,
                                      StepOutcome::kGivenUp,
                                      StepOutcome::kUpdated};
      for (int step = 0; step < 5; ++step) {
        path->begin_round({0, true, std::vector<bool>(2, true)});
        for (const std::size_t p : {std::size_t{1}, std::size_t{0}}) {
          if (const Tensor g = gradient(p, step, world.rank()); g.defined()) {
            EXPECT_TRUE(path->add(p, g));
          }
        }
        path->end_round(false);
        path->finish();
        if (outcomes[step] == StepOutcome::kUpdated) {
          taken.push_back(step);
          for (const Piece& piece : plan.units[0].layout.pieces(plan.ownership.mine(0))) {
            const ConstSpan run = sums.at(0, {piece.offset, piece.offset + piece.numel});
            Tensor& into = received[piece.parameter];
            into = into.defined() ? into : torch::zeros(plan.parameters[piece.parameter].numel);
            for (std::int64_t i = 0; i < piece.numel; ++i) {
              into[piece.begin + i] += reinterpret_cast<const float*>(run.bytes())[i];
            }
          }
        }
        path->end_step(outcomes[step]);
        // The state is one tensor for each parameter and rank, of which this rank has its own.
        StateView view;
        path->describe(view, true);
        ASSERT_EQ(view.tensors.size(), 4U);
        ASSERT_EQ(view.slices.size(), 2U);
        for (const StateSlice& slice : view.slices) {
          const std::size_t p = slice.tensor % 2;
          EXPECT_EQ(view.tensors[slice.tensor].name, plan.parameters[p].name);
          const Tensor all = total(p, taken, world.rank());
          const Tensor rest = (all - all.floor()).contiguous();
          EXPECT_EQ(std::memcmp(slice.data, rest.const_data_ptr(), rest.nbytes()), 0) << step;
        }
        if (step == 2) {  // another process goes on from a checkpoint
          auto other = std::make_unique<FloorPath>(context, sums);
          other->set_rounds(1);
          StateView into;
          other->describe(into, false);
          for (std::size_t i = 0; i < view.slices.size(); ++i) {
            std::memcpy(into.slices[i].data,
                        view.slices[i].data,
                        into.tensors[into.slices[i].tensor].size_bytes());
          }
          path = std::move(other);
        }
      }
      for (const Piece& piece : plan.units[0].layout.pieces(plan.ownership.mine(0))) {
        Tensor expected = total(piece.parameter, taken, 0).floor();
        expected = (expected + total(piece.parameter, taken, 1).floor()).flatten();
        const auto part = [&](const Tensor& whole) {
          return whole.slice(0, piece.begin, piece.begin + piece.numel);
        };
        EXPECT_TRUE(torch::equal(part(received[piece.parameter]), part(expected)));
      }
      world.barrier().wait();
    }
  });
}

TEST(RoundRecords, EveryoneHearsWhoHasNoDataWhoGivesUpAndWhoseRateDiffers) {
  fork_world(3, [](World& world) {
    RoundRecords records(4, world);
    const auto told = [&](bool joined, bool given_up, double base) -> const Agreement& {
      records.hear();
      records.forget_own();
      std::vector<GradientState> states(4, GradientState::kAbsent);
      states[static_cast<std::size_t>(world.rank())] = GradientState::kPresent;
      if (!joined) {
        records.note(states);
        records.count_micro_batch();
      }
      records.tell(joined, given_up, {base, 2});
      return records.agreement();
    };
    // Rank 0 has joined: the lead is rank 1, and its base counts for those that have joined.
    const Agreement first = told(world.rank() == 0, false, world.rank() == 0 ? 7 : 0.25);
    EXPECT_EQ(first.lead, 1);
    EXPECT_TRUE(first.any_joined);
    EXPECT_FALSE(first.all_joined);
    EXPECT_EQ(first.micro_batches, 2);
    EXPECT_EQ(first.other_rate_rank, -1);
    EXPECT_EQ(first.lead_rate, 0.5);
    EXPECT_EQ(first.used, (std::vector<bool>{false, true, true, false}));
    // A second round adds to it, and only it is in sums that begin with it.
    records.begin_sums();
    const Agreement second = told(false, world.rank() == 2, world.rank() == 2 ? 1 : 0.25);
    EXPECT_EQ(records.in_sums(), (std::vector<char>{1, 1, 1, 0}));
    EXPECT_EQ(second.micro_batches, 5);
    EXPECT_EQ(second.given_up_rank, 2);
    EXPECT_EQ(second.other_rate_rank, 2);
    EXPECT_EQ(second.other_rate, 2);
    records.reset();
    const Agreement last = told(true, false, 0.25);
    EXPECT_TRUE(last.all_joined);
    EXPECT_EQ(last.used, std::vector<bool>(4, false));
  });
}

TEST(BucketOrder, IsRankZerosFromTheFirstWholeStepOn) {
  fork_world(2, [](World& world) {
    BucketOrder order(4);
    EXPECT_EQ(order.positions(), (std::vector<std::size_t>{0, 1, 2, 3}));
    // Rank 0 fills 2, 0, 2 again; 1 and 3 stay empty. Rank 1 fills them in another order.
    for (const std::size_t bucket : world.rank() == 0 ? std::vector<std::size_t>{2, 0, 2}
                                                      : std::vector<std::size_t>{3, 1, 0, 2}) {
      order.filled(bucket);
    }
    EXPECT_FALSE(order.learned());
    EXPECT_TRUE(order.learn(world));
    EXPECT_EQ(order.positions(), (std::vector<std::size_t>{1, 2, 0, 3}));
    order.forget_filled();
    order.filled(3);
    EXPECT_FALSE(order.learn(world));  // once
    EXPECT_EQ(order[0], 2U);
  });
}

// Rank 0 is by hand, and sends what is no order.
TEST(BucketOrder, RefusesWhatIsNoOrder) {
  fork_world(2, [](World& world) {
    const std::pair<std::vector<std::int64_t>, std::string> wrong[] = {
        {{2, 0, 2, 3}, "found bucket 2 twice"},
        {{2, 0, 1, 4}, "found bucket 4:"},
        {{-1, 0, 1, 2}, "found bucket -1:"}};
    for (const auto& [sent, found] : wrong) {
      if (world.rank() == 0) {
        std::vector<std::int64_t> order = sent;
        world.broadcast(order, 0).wait();
        continue;
      }
      BucketOrder order(4);
      const std::string message = message_of<CommError>([&] { order.learn(world); });
      EXPECT_NE(message.find("rank 1 expected each of its 4 buckets once"), std::string::npos)
          << message;
      EXPECT_NE(message.find(found), std::string::npos) << message;
      EXPECT_EQ(order.positions(), (std::vector<std::size_t>{0, 1, 2, 3}));
    }
  });
}

TEST(BucketRing, GrowsWhereWaitingWouldBeACircleAndShrinksAfterwards) {
  fork_world(2, [](World& world) {
    const auto ledger = MemoryLedger::create();
    BucketRing ring(world, 64, 2, *ledger);
    const int one = ring.take();
    const int two = ring.take();
    EXPECT_FALSE(ring.has_free());
    const int grown = ring.grow();
    EXPECT_EQ(ring.size(), 3U);
    EXPECT_EQ(ledger->use().of(MemoryCategory::kBuckets), 3 * 64);
    const Span run = ring.run(grown, 16, Dtype::kFloat32);
    EXPECT_EQ(run.size_bytes(), 64U);
    EXPECT_NE(run.bytes(), ring.run(one, 16, Dtype::kFloat32).bytes());
    ring.give_back(one);
    ring.give_back(two);
    ring.give_back(grown);
    ring.shrink();
    EXPECT_EQ(ring.size(), 2U);
    EXPECT_EQ(ledger->use().of(MemoryCategory::kBuckets), 2 * 64);
    run.bytes()[63] = std::byte{1};  // the run keeps its memory
    EXPECT_TRUE(ring.has_free());
    ring.take();
    ring.take();
    EXPECT_FALSE(ring.has_free());
  });
}

TEST(BucketRing, OfAGpuHasAPassageForWhatItGrewBy) {
  fork_world(2, [](World& world) {
    const testing::WithLateDevice late;
    const Device gpu = testing::kLateDevice;
    const auto ledger = MemoryLedger::create();
    BucketRing ring(world, 64, 2, *ledger, gpu);
    EXPECT_EQ(ring.size(), 2U);
    EXPECT_EQ(ledger->use().of(MemoryCategory::kBuckets), 3 * 64) << "with the passage";
    EXPECT_TRUE(ring.is_seen(ring.take()));
    EXPECT_TRUE(ring.is_seen(ring.take()));
    EXPECT_FALSE(ring.has_free()) << "the passage is for what is launched";
    const int grown = ring.grow();
    EXPECT_FALSE(ring.is_seen(grown));
    const std::vector<float> ones(16, 1.0F);
    std::vector<float> sums(16);
    const Span hidden = ring.run(grown, 16, Dtype::kFloat32);
    stream_for(hidden).copy(hidden, ones);
    EXPECT_THROW(world.all_reduce(hidden).wait(), ConfigError) << "the others cannot see it";
    for (int time = 0; time < 2; ++time) {
      EXPECT_TRUE(ring.passage_is_free());
      const int passage = ring.take_passage();
      EXPECT_FALSE(ring.passage_is_free());
      EXPECT_TRUE(ring.is_seen(passage));
      const Span seen = ring.run(passage, 16, Dtype::kFloat32);
      stream_for(seen).copy(seen, hidden);
      world.all_reduce(seen).wait();
      stream_for(seen).copy(sums, seen);
      finish_work(gpu);
      EXPECT_EQ(sums, std::vector<float>(16, 2.0F));
      ring.give_back(passage);
      EXPECT_FALSE(ring.has_free());
    }
    for (int slot = 0; slot < 2; ++slot) {
      ring.give_back(slot);
    }
    ring.give_back(grown);
    ring.shrink();
    EXPECT_EQ(ledger->use().of(MemoryCategory::kBuckets), 3 * 64);
    EXPECT_NE(ring.take(), ring.take());
    EXPECT_FALSE(ring.has_free());
  });
}

}  // namespace
}  // namespace trireme::detail::gradient_pieces_test
