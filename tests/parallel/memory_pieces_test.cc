// Memory behind an engine: totals of groups, what an optimizer keeps, units that come and go.

#include <cstring>
#include <deque>

#include <gtest/gtest.h>

#include "parallel/memory/group_totals.h"
#include "parallel/memory/live_units.h"
#include "parallel/memory/optimizer_memory.h"
#include "parallel/memory/runs.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail::memory_pieces_test {
namespace {

namespace nn = torch::nn;
using testing::fork_world;
using testing::message_of;
using torch::Tensor;

struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    first = register_module("first", nn::Linear(7, 30));
    last = register_module("last", nn::Linear(30, 5));
  }
  Tensor forward(const Tensor& x) { return last->forward(torch::tanh(first->forward(x))); }
  nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

struct Setting {
  Setting(World& world, const EngineOptions& engine_options, Dtype dtype = Dtype::kFloat32)
      : ranks(world), options(engine_options) {
    plan.parameters = list_parameters(*model);
    for (Parameter& parameter : plan.parameters) {
      parameter.dtype = dtype;
    }
    plan.complete(*model, options, ranks, ranks);
  }
  PartContext context() { return {ranks, ranks, plan, options, *ledger, alive}; }

  std::shared_ptr<int> alive = std::make_shared<int>(0);
  Net model;
  World& ranks;
  EngineOptions options;
  std::shared_ptr<MemoryLedger> ledger = MemoryLedger::create();
  ModelPlan plan;
};

float* floats(const Span& run) {
  return reinterpret_cast<float*>(run.bytes());
}

TEST(Runs, PartsCopiesAndSums) {
  std::vector<float> values(10);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) + 0.5F;
  }
  std::vector<float> sums(10, 100);
  const Span run(values);
  EXPECT_EQ(part_of(run, {3, 7}).numel(), 4);
  EXPECT_EQ(floats(part_of(run, {3, 7}))[0], 3.5F);
  device::host().add(part_of(Span(sums), {0, 5}), part_of(run, {5, 10}));
  EXPECT_EQ(sums[1], 106.5F);
  device::host().add(part_of(Span(sums), {0, 5}), part_of(run, {5, 10}), /*first=*/true);
  EXPECT_EQ(sums[1], 6.5F);
  EXPECT_EQ(sums[5], 100);
  // What a rank without a share has of a parameter that begins behind its empty range.
  EXPECT_EQ(part_of(Span(), {16, 16}).bytes(), nullptr);
  EXPECT_EQ(part_of(ConstSpan(), {16, 16}).bytes(), nullptr);
}

// A group's sums are added to those of the groups before it, where it has any.
TEST(GroupTotals, AddUpGroupByGroup) {
  fork_world(2, [](World& world) {
    for (const int stage : {0, 2}) {
      Setting setting(world, {.zero = stage});
      GradientSums sums(setting.context());
      GroupTotals totals(setting.context(), sums);
      totals.make();
      totals.make();  // once
      for (int step = 0; step < 2; ++step) {
        // Parameter p has gradients in group g unless p == g; the group's sum is 1 + g + p / 8.
        for (std::size_t group = 0; group < 3; ++group) {
          std::vector<char> in_sums(setting.plan.parameters.size(), 1);
          in_sums[group] = 0;
          for (std::size_t u = 0; u < setting.plan.units.size(); ++u) {
            for (const Piece& piece :
                 setting.plan.units[u].layout.pieces(setting.plan.ownership.mine(u))) {
              const Span run = sums.at(u, {piece.offset, piece.offset + piece.numel});
              const std::size_t p = setting.plan.parameter_of(u, piece);
              std::fill_n(floats(run),
                          run.numel(),
                          1 + static_cast<float>(group) + static_cast<float>(p) / 8);
            }
          }
          totals.add(in_sums);
        }
        totals.move_to_sums();
        for (std::size_t u = 0; u < setting.plan.units.size(); ++u) {
          for (const Piece& piece :
               setting.plan.units[u].layout.pieces(setting.plan.ownership.mine(u))) {
            const std::size_t p = setting.plan.parameter_of(u, piece);
            float expected = 0;
            for (std::size_t group = 0; group < 3; ++group) {
              expected +=
                  group == p ? 0 : 1 + static_cast<float>(group) + static_cast<float>(p) / 8;
            }
            const Span run = sums.at(u, {piece.offset, piece.offset + piece.numel});
            for (std::int64_t i = 0; i < run.numel(); ++i) {
              EXPECT_EQ(floats(run)[i], expected) << p;
            }
          }
        }
        totals.reset();
      }
    }
  });
}

TEST(OptimizerMemory, KeepsWhatTheStageSaysAndMastersFollowWhatWasWritten) {
  fork_world(2, [](World& world) {
    at::set_num_threads(1);
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(stage);
      Setting setting(world, {.zero = stage, .ema_decay = 0.9}, Dtype::kBFloat16);
      const Net original;  // in float32
      const auto parameters = make_parameter_memory(setting.context());
      const ParameterRules rules(Adam(), setting.plan.parameters, *setting.ledger);
      OptimizerMemory memory(setting.context(), rules, *parameters);
      for (std::size_t u = 0; u < setting.plan.units.size(); ++u) {
        memory.take_masters(u);
        parameters->adopt(u);
        memory.take_averages(u);
      }
      for (std::size_t p = 0; p < setting.plan.parameters.size(); ++p) {
        const auto kept = memory.kept(p);
        const Range updated = setting.plan.ownership.updated(setting.plan.places[p].unit);
        ASSERT_EQ(kept.size(), 4U);
        EXPECT_EQ(kept[0].kind, "weight");
        EXPECT_EQ(kept[1].kind, "optimizer.exp_avg");
        EXPECT_EQ(kept[2].kind, "optimizer.exp_avg_sq");
        EXPECT_EQ(kept[3].kind, "average");
        for (const auto& [kind, run, sizes, store, place] : kept) {
          EXPECT_EQ(run.numel(), intersection(setting.plan.range_of(p), updated).size()) << kind;
          EXPECT_TRUE(sizes.empty()) << kind;
          EXPECT_TRUE(store == nullptr && place == 0) << kind;
          EXPECT_EQ(run.dtype(), Dtype::kFloat32) << kind;
        }
      }
      // Masters and averages have the bits that were there before they were rounded.
      const auto before = original->parameters();
      const auto expect_weights = [&](std::size_t p, const Tensor& expected) {
        const std::size_t u = setting.plan.places[p].unit;
        const Range updated = setting.plan.ownership.updated(u);
        for (const Piece& piece : setting.plan.units[u].layout.pieces(updated)) {
          if (setting.plan.parameter_of(u, piece) == p) {
            const Span run = memory.piece_of(memory.weights(u), u, piece);
            const auto* values = static_cast<const float*>(expected.const_data_ptr());
            EXPECT_EQ(std::memcmp(run.bytes(), values + piece.begin, run.size_bytes()), 0);
          }
        }
      };
      for (std::size_t p = 0; p < before.size(); ++p) {
        expect_weights(p, before[p]);
      }
      // Written from outside: one element is another one, the others keep their precision.
      const Tensor low = before[0].detach().to(torch::kBFloat16);
      const Tensor now = low.clone();
      now.view(-1)[17] = 3;
      memory.parameter_changed(0, low, now);
      Tensor expected = before[0].detach().clone();
      expected.view(-1)[17] = 3;
      expect_weights(0, expected);
      world.barrier().wait();
    }
  });
}

TEST(ParameterRules, RefuseARuleWhoseStatesHaveNoNames) {
  struct Nameless final : Optimizer {
    std::string name() const override { return "nameless"; }
    std::vector<OptimizerState> states(const ParameterInfo&) const override { return {"a", "a"}; }
    double learning_rate() const override { return 0; }
    void update(const ParameterSlice&, const GradientTransform&, double) const override {}
    std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Nameless>(); }
  };
  fork_world(1, [](World& world) {
    Setting setting(world, {});
    EXPECT_NE(message_of<ConfigError>([&] {
                ParameterRules rules(Nameless(), setting.plan.parameters, *setting.ledger);
              }).find("checkpoints need one for each"),
              std::string::npos);
  });
}

// Threads divide parameters that are larger than a block; nothing of it is in the bits.
TEST(ShardedOptimizer, ThreadsChangeNoBit) {
  struct WideImpl : nn::Module {
    WideImpl() {
      torch::manual_seed(2);
      weight = register_parameter("weight", torch::randn({700, 900}));
      bias = register_parameter("bias", torch::randn({900}));
    }
    Tensor forward(const Tensor& x) { return torch::matmul(x, weight) + bias; }
    Tensor weight, bias;
  };
  const std::vector<std::function<std::unique_ptr<Optimizer>()>> rules = {
      [] { return std::make_unique<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}); },
      [] { return std::make_unique<AdamW>(AdamWOptions{.lr = 0.1}); },
      [] { return std::make_unique<Lamb>(LambOptions{.lr = 0.1}); },
      [] { return std::make_unique<Adafactor>(); }};
  fork_world(2, [&](World& world) {
    const std::shared_ptr<World> ranks(&world, [](World*) {});
    at::set_num_threads(1);
    for (const auto& rule : rules) {
      std::vector<Tensor> results;
      for (const int zero : {0, 2}) {
        for (const int threads : {1, 4}) {
          auto model = std::make_shared<WideImpl>();
          Engine<WideImpl> engine(
              model, *rule(), {.zero = zero, .ema_decay = 0.5, .threads = threads}, ranks);
          for (int step = 0; step < 3; ++step) {
            torch::manual_seed(10 * step + world.rank());
            engine.backward(engine.forward(torch::randn({4, 700})).pow(2).mean());
            engine.step();
          }
          results.push_back(torch::cat({model->weight.detach().flatten(),
                                        model->bias.detach(),
                                        engine.average("weight").flatten()}));
          EXPECT_TRUE(torch::equal(results.back(), results.front())) << zero << ' ' << threads;
        }
      }
    }
  });
}

// Units in memory of the test, which counts who is asked for.
class CountingSource final : public UnitSource {
 public:
  CountingSource(std::size_t units, std::size_t bytes)
      : held(units, false), memory_(units, std::vector<std::byte>(bytes)) {}
  const std::byte* acquire(std::size_t unit) override {
    EXPECT_FALSE(held[unit]);
    held[unit] = true;
    fetched.push_back(unit);
    return memory_[unit].data();
  }
  void release(std::size_t unit) override {
    EXPECT_TRUE(held[unit]);
    held[unit] = false;
  }

  std::vector<bool> held;
  std::vector<std::size_t> fetched;

 private:
  std::vector<std::vector<std::byte>> memory_;
};

TEST(LiveUnits, StayWithinTheLimitAndLetGoOfWhatIsNeededLast) {
  constexpr std::size_t kUnits = 4;
  constexpr std::size_t kBytes = 256;
  auto owned = std::make_unique<CountingSource>(kUnits, kBytes);
  CountingSource& source = *owned;
  const auto live = std::make_shared<LiveUnits>(2 * kBytes, /*prefetch=*/false, std::move(owned));
  std::vector<Parameter> parameters(1);
  parameters[0].name = "weight";
  Unit unit;
  unit.parameters = {0};
  unit.layout = FlatLayout({kBytes / 4}, Dtype::kFloat32);
  for (std::size_t u = 0; u < kUnits; ++u) {
    live->add(kBytes, UnitNames(unit, parameters));
  }
  const auto use = [&](std::size_t u) {
    live->pin(u);
    EXPECT_TRUE(source.held[u]);
    EXPECT_LE(std::count(source.held.begin(), source.held.end(), true), 2);
    live->unpin(u);
  };
  const std::vector<std::size_t> forward_and_back = {0, 1, 2, 3, 2, 1, 0};
  for (const std::size_t u : forward_and_back) {
    use(u);
  }
  live->end_of_step();
  live->drop_all();
  EXPECT_EQ(std::count(source.held.begin(), source.held.end(), true), 0);
  // The uses of the last step are known now: what goes is what is needed last of all that is there,
  // as Belady has it. By hand: 0 and 1 come; 2 takes the place of 0; 3 that of 1; 2 is there; 1
  // takes the place of 3, which is not needed any more; 0 takes one that is not either.
  source.fetched.clear();
  for (const std::size_t u : forward_and_back) {
    use(u);
  }
  EXPECT_EQ(source.fetched, (std::vector<std::size_t>{0, 1, 2, 3, 1, 0}));
  // Two are in use at a time: a third one comes all the same, beyond the limit.
  live->drop_all();
  live->pin(0);
  live->pin(1);
  live->pin(2);
  EXPECT_EQ(std::count(source.held.begin(), source.held.end(), true), 3);
  for (std::size_t u = 0; u < 3; ++u) {
    live->unpin(u);
  }
  live->close();
  EXPECT_THROW(live->pin(0), ConfigError);
}

// As in GPT: one large unit, whose memory comes and goes, beside many of another size.
TEST(PrivateSource, OfAGpuTakesNothingInASteadyStep) {
  testing::WithLateDevice late;
  const std::vector<std::size_t> bytes = {154, 28, 28, 28, 28, 28, 28, 28, 28, 6};
  const std::size_t limit = 154 + 28;
  const auto ledger = MemoryLedger::create();
  const auto live = std::make_shared<LiveUnits>(
      limit,
      /*prefetch=*/false,
      make_private_source(
          {bytes, limit, [](std::size_t, std::byte*) {}, ledger, testing::kLateDevice}),
      testing::kLateDevice);
  std::vector<Parameter> parameters(1);
  parameters[0].name = "weight";
  Unit unit;
  unit.parameters = {0};
  unit.layout = FlatLayout({1}, Dtype::kFloat32);
  for (const std::size_t each : bytes) {
    live->add(each, UnitNames(unit, parameters));
  }
  std::uint64_t before = 0;
  for (int step = 0; step < 8; ++step) {
    for (int pass = 0; pass < 2; ++pass) {  // forward, and backward in the opposite order
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        const std::size_t u = pass == 0 ? i : bytes.size() - 1 - i;
        live->pin(u);
        live->unpin(u);
        EXPECT_LE(ledger->use().of(MemoryCategory::kGather), 2 * static_cast<int>(limit));
      }
    }
    live->end_of_step();
    live->drop_all();
    if (step == 2) {
      before = late.driver().taken();
      EXPECT_GT(before, 0U);
    }
  }
  EXPECT_EQ(late.driver().taken(), before);
  live->close();
}

}  // namespace
}  // namespace trireme::detail::memory_pieces_test
