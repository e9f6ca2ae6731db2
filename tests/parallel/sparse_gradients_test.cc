// Gradients that are rows: what LibTorch's formulas make of them, lazily and exactly, with the same
// bits at every stage and on any number of ranks, and nothing of the size of the parameter moved.

#include <cmath>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/shared_state.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::sparse_gradients_test {
namespace {

namespace nn = torch::nn;
using testing::message_of;
using testing::SharedState;
using torch::Tensor;

constexpr std::int64_t kRows = 41;
constexpr std::int64_t kWidth = 5;  // no multiple of what ranges are made of: rows are divided
constexpr std::int64_t kMicroBatches = 7;
constexpr int kSteps = 6;

struct NetImpl : nn::Module {
  nn::Embedding table{nullptr};
  nn::Linear head{nullptr};
  explicit NetImpl(bool sparse = true, std::int64_t rows = kRows, std::int64_t width = kWidth) {
    torch::manual_seed(5);
    table =
        register_module("table", nn::Embedding(nn::EmbeddingOptions(rows, width).sparse(sparse)));
    head = register_module("head", nn::Linear(width, 3));
  }
  // Undefined: without the table.
  Tensor forward(const Tensor& ids) {
    const Tensor rows = ids.defined()
                            ? table->forward(ids)
                            : torch::ones({2, table->weight.size(1)}, table->weight.scalar_type());
    return head->forward(rows).pow(2).sum();
  }
};
TORCH_MODULE(Net);

// With repetitions. A micro-batch without samples, steps and micro-batches that do not look
// anything up, a row that one micro-batch alone looks up, and some that none does.
Tensor ids_of(int step, std::int64_t micro_batch, bool repeated = true) {
  if (step == 4 || (step == 3 && micro_batch % 2 == 1)) {
    return {};
  }
  if (step == 2 || micro_batch == 1) {
    return torch::empty({0}, torch::kLong);
  }
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + micro_batch));
  Tensor ids = repeated ? torch::randint(0, kRows - 5, {6}, generator, torch::kLong)
                        : torch::randperm(kRows - 5, generator, torch::kLong).slice(0, 0, 6);
  if (micro_batch == 3) {
    ids[2] = kRows - 1;
  }
  return ids;
}

struct Mode {
  int zero;
  Placement placement;
};
std::vector<Mode> modes() {
  std::vector<Mode> all = {{0, Placement::kAutomatic},
                           {1, Placement::kAutomatic},
                           {2, Placement::kAutomatic},
                           {3, Placement::kAutomatic}};
  if (testing::in_shared_memory()) {
    all.push_back({3, Placement::kCopied});
  }
  return all;
}
std::string name_of(const Mode& mode) {
  return "stage " + std::to_string(mode.zero) +
         (mode.placement == Placement::kCopied ? " copied" : "");
}
EngineOptions in(const Mode& mode, EngineOptions options) {
  options.zero = mode.zero;
  options.placement = mode.placement;
  options.micro_batches = kMicroBatches;
  return options;
}

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

void take_steps(Engine<NetImpl>& engine, int first, int last, bool repeated = true) {
  for (int step = first; step < last; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(engine.forward(ids_of(step, engine.micro_batch(k), repeated)));
      engine.step();
    }
  }
}

Tensor whole(EngineBase& engine, const Tensor& parameter) {
  const auto scope = engine.gathered();
  return parameter.detach().clone();
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor one = a.contiguous(), other = b.contiguous();
  return one.nbytes() == other.nbytes() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

// --- the lazy update, as formulas say

// A rule on some elements: p, its gradient and its states change in place.
struct Formula {
  std::string name;
  std::shared_ptr<const Optimizer> rule;
  std::function<void(Tensor& p, const Tensor& g, std::vector<Tensor>& states, double step)> update;
};

std::vector<Formula> formulas() {
  using States = std::vector<Tensor>;
  constexpr double kRate = 0.05, kDecay = 0.2, kEps = 1e-3;
  const auto adam = [](Tensor& p, const Tensor& g, States& s, double step) {
    s[0] = 0.8 * s[0] + 0.2 * g;
    s[1] = 0.9 * s[1] + 0.1 * g * g;
    const Tensor mean = s[0] / (1 - std::pow(0.8, step));
    const Tensor square = s[1] / (1 - std::pow(0.9, step));
    p -= kRate * mean / (square.sqrt() + kEps);
  };
  return {
      {"sgd",
       std::make_shared<Sgd>(SgdOptions{.lr = kRate, .weight_decay = kDecay}),
       [](Tensor& p, const Tensor& g, States&, double) { p -= kRate * (g + kDecay * p); }},
      {"momentum",
       std::make_shared<Sgd>(SgdOptions{.lr = kRate, .momentum = 0.9, .nesterov = true}),
       [](Tensor& p, const Tensor& g, States& s, double) {
         s[0] = 0.9 * s[0] + g;
         p -= kRate * (g + 0.9 * s[0]);
       }},
      {"adam",
       std::make_shared<Adam>(AdamOptions{.lr = kRate, .beta1 = 0.8, .beta2 = 0.9, .eps = kEps}),
       adam},
      {"adamw",
       std::make_shared<AdamW>(AdamWOptions{
           .lr = kRate, .beta1 = 0.8, .beta2 = 0.9, .eps = kEps, .weight_decay = kDecay}),
       [adam](Tensor& p, const Tensor& g, States& s, double step) {
         p *= 1 - kRate * kDecay;
         adam(p, g, s, step);
       }},
      {"adagrad",
       std::make_shared<Adagrad>(AdagradOptions{.lr = kRate, .lr_decay = 0.5, .eps = kEps}),
       [](Tensor& p, const Tensor& g, States& s, double step) {
         s[0] += g * g;
         p -= kRate / (1 + (step - 1) * 0.5) * g / (s[0].sqrt() + kEps);
       }},
      {"rmsprop",
       std::make_shared<Rmsprop>(RmspropOptions{.lr = kRate, .alpha = 0.9, .eps = kEps}),
       [](Tensor& p, const Tensor& g, States& s, double) {
         s[0] = 0.9 * s[0] + 0.1 * g * g;
         p -= kRate * g / (s[0].sqrt() + kEps);
       }},
      {"lion",
       std::make_shared<Lion>(
           LionOptions{.lr = kRate, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = kDecay}),
       [](Tensor& p, const Tensor& g, States& s, double) {
         p *= 1 - kRate * kDecay;
         p -= kRate * (0.8 * s[0] + 0.2 * g).sign();
         s[0] = 0.9 * s[0] + 0.1 * g;
       }},
  };
}

// One process and LibTorch alone: gradients of a dense table, of which the rows that were looked up
// are updated.
class Plain {
 public:
  explicit Plain(const Formula& formula) : formula_(formula), model_(/*sparse=*/false) {
    for (const Tensor& p : model_->parameters()) {
      states_.push_back(
          {torch::zeros_like(p, torch::kDouble), torch::zeros_like(p, torch::kDouble)});
      exact_.push_back(p.detach().to(torch::kDouble));
      steps_.push_back(0);
    }
  }

  void step(int number) {
    std::vector<Tensor> sums(exact_.size());
    std::vector<Tensor> ids = {torch::empty({0}, torch::kLong)};
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      const Tensor looked_up = ids_of(number, m);
      model_->zero_grad(/*set_to_none=*/true);
      model_->forward(looked_up).backward();
      if (looked_up.defined()) {
        ids.push_back(looked_up);
      }
      for (std::size_t p = 0; p < sums.size(); ++p) {
        if (const Tensor g = model_->parameters()[p].grad(); g.defined()) {
          const Tensor more = g.to(torch::kDouble);
          sums[p] = sums[p].defined() ? sums[p] + more : more;
        }
      }
    }
    touched_ = std::get<0>(torch::_unique(torch::cat(ids)));
    for (std::size_t p = 0; p < sums.size(); ++p) {
      if (sums[p].defined()) {
        ++steps_[p];
        const bool rows = p == 0;
        update(p, sums[p] / kMicroBatches, rows ? touched_ : torch::arange(exact_[p].size(0)));
      }
    }
  }

  // Rows, of the last step.
  const Tensor& touched() const { return touched_; }
  const Tensor& parameter(std::size_t p) const { return exact_[p]; }

 private:
  void update(std::size_t p, const Tensor& gradient, const Tensor& rows) {
    Tensor values = exact_[p].index_select(0, rows);
    std::vector<Tensor> states;
    for (const Tensor& state : states_[p]) {
      states.push_back(state.index_select(0, rows));
    }
    formula_.update(values, gradient.index_select(0, rows), states, steps_[p]);
    exact_[p].index_copy_(0, rows, values);
    for (std::size_t k = 0; k < states.size(); ++k) {
      states_[p][k].index_copy_(0, rows, states[k]);
    }
    const torch::NoGradGuard no_grad;
    model_->parameters()[p].copy_(exact_[p]);
  }

  const Formula& formula_;
  Net model_;
  std::vector<Tensor> exact_;
  std::vector<std::vector<Tensor>> states_;
  std::vector<double> steps_;
  Tensor touched_;
};

TEST(SparseGradients, LazilyUpdateTheRowsOfAStepAndNoOthers) {
  for (const int size : {1, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const Formula& formula : formulas()) {
        for (const Mode& mode : modes()) {
          SCOPED_TRACE(formula.name + ", " + name_of(mode));
          Plain plain(formula);
          Net model;
          Engine engine(
              model, *formula.rule, in(mode, {.sparse_update = SparseUpdate::kLazy}), world);
          for (int step = 0; step < kSteps; ++step) {
            const Tensor before = whole(engine, model->table->weight);
            take_steps(engine, step, step + 1);
            plain.step(step);
            const Tensor now = whole(engine, model->table->weight);
            std::set<std::int64_t> touched;
            for (std::int64_t i = 0; i < plain.touched().numel(); ++i) {
              touched.insert(plain.touched()[i].item<std::int64_t>());
            }
            EXPECT_EQ(touched.empty(), step == 2 || step == 4);
            for (std::int64_t row = 0; row < kRows; ++row) {
              EXPECT_EQ(same_bits(before[row], now[row]), touched.count(row) == 0)
                  << "step " << step << ", row " << row;
            }
            EXPECT_TRUE(torch::allclose(now.to(torch::kDouble), plain.parameter(0), 1e-4, 1e-5))
                << "step " << step;
          }
          EXPECT_TRUE(torch::allclose(whole(engine, model->head->weight).to(torch::kDouble),
                                      plain.parameter(1),
                                      1e-4,
                                      1e-5));
        }
      }
    });
  }
}

// --- the same bits everywhere

struct Setting {
  std::string name;
  std::shared_ptr<const Optimizer> rule;
  EngineOptions options;
};

std::vector<Setting> settings() {
  const auto adamw = std::make_shared<AdamW>(AdamWOptions{.lr = 0.05});
  const auto adagrad = std::make_shared<Adagrad>(AdagradOptions{.lr = 0.05});
  const SparseUpdate lazy = SparseUpdate::kLazy;
  EngineOptions half{.sparse_update = lazy};
  half.precision = Precision::kBFloat16;
  EngineOptions scaled{.sparse_update = lazy};
  scaled.precision = Precision::kFloat16;
  EngineOptions rounded{.sparse_update = lazy};
  rounded.round_weights = make_compressor("int8");
  EngineOptions threads{.sparse_update = lazy};
  threads.threads = 3;
  return {
      {"lazy adamw", adamw, {.clip_norm = 0.5, .ema_decay = 0.9, .sparse_update = lazy}},
      {"lazy adamw by several threads", adamw, threads},
      {"lazy adamw in bfloat16", adamw, half},
      {"lazy adamw in float16", adamw, scaled},
      {"lazy adamw, rounded", adamw, rounded},
      {"lazy adagrad", adagrad, {.clip_value = 0.01, .sparse_update = lazy}},
      {"exact adagrad", adagrad, {.clip_norm = 0.5}},
      {"exact adamw", adamw, {.clip_norm = 0.5, .ema_decay = 0.9}},
      {"exact lamb", std::make_shared<Lamb>(LambOptions{.lr = 0.05}), {}},
  };
}

// A rank's micro-batches that are added up before they travel, by an engine and by DataParallel,
// are added up in float32, as dense ones are.
TEST(SparseGradients, AddUpIn16BitsAsDenseOnesDo) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const auto ids = [](std::int64_t k) {
      return torch::randperm(
          7, at::detail::createCPUGenerator(static_cast<std::uint64_t>(k)), torch::kLong);
    };
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
      for (const Mode& mode : modes()) {
        SCOPED_TRACE(std::string(toString(type)) + ", " + name_of(mode));
        std::vector<Tensor> gradients;
        for (const bool sparse : {false, true}) {
          Net model(sparse);
          model->to(type);
          EngineOptions options = in(mode, {.sum_order = SumOrder::kLocalFirst});
          options.micro_batches = 32;
          options.loss_scale.initial = 1;
          Engine engine(model, Sgd({.lr = 1e-3}), options, world);
          const std::int64_t own = engine.local_micro_batches();
          for (std::int64_t k = 0; k < own; ++k) {
            const std::int64_t m = engine.micro_batch(k);
            const double scale = 0.01 + 0.0037 * static_cast<double>(m);
            engine.backward(engine.forward(ids(m)) * scale);
            if (k + 1 == own) {
              gradients.push_back(engine.grad("table.weight"));
            }
            engine.step();
          }
        }
        EXPECT_TRUE(same_bits(gradients[0], gradients[1]));
      }
    }
  });
}

// Several losses of a micro-batch, which are added up as LibTorch does it; of float16 it adds no
// rows.
TEST(SparseGradients, OfSeveralLossesAreAddedUp) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      SCOPED_TRACE(toString(type));
      std::vector<Tensor> gradients;
      for (const bool sparse : {false, true}) {
        Net model(sparse);
        model->to(type);
        EngineOptions options{.micro_batches = 2};
        options.loss_scale.initial = 1;
        Engine engine(model, Sgd({.lr = 1e-3}), options, world);
        const auto loss = [&](std::int64_t first) {
          return engine.forward(torch::arange(first, first + 4, torch::kLong)) * 0.01;
        };
        engine.backward(loss(1), {.more = true});
        engine.backward(loss(3));
        gradients.push_back(engine.grad("table.weight"));
        engine.step();
      }
      EXPECT_TRUE(same_bits(gradients[0], gradients[1]));
    }
  });
}

// All of the state: weights, masters, moments, averages, steps.
TEST(SparseGradients, HaveTheSameBitsAtEveryStageAndOnAnyNumberOfRanks) {
  for (const Setting& setting : settings()) {
    SharedState alone;
    SharedState half;
    in_world(1, [&](const std::shared_ptr<World>& world) {
      Net model;
      Engine engine(model, *setting.rule, in({0, Placement::kAutomatic}, setting.options), world);
      take_steps(engine, 0, 3);
      half.save(engine);
      take_steps(engine, 3, kSteps);
      alone.save(engine);
    });
    for (const int size : {1, 2, 3}) {
      for (const Mode& mode : modes()) {
        SharedState found;
        SharedState resumed;
        in_world(size, [&](const std::shared_ptr<World>& world) {
          {
            Net model;
            Engine engine(model, *setting.rule, in(mode, setting.options), world);
            take_steps(engine, 0, kSteps);
            found.save(engine);
          }
          // From a state of another stage and number of ranks.
          Net model;
          Engine engine(model, *setting.rule, in(mode, setting.options), world);
          half.load(engine);
          take_steps(engine, 3, kSteps);
          resumed.save(engine);
        });
        EXPECT_TRUE(found == alone) << setting.name << ", " << size << " ranks, " << name_of(mode);
        EXPECT_TRUE(resumed == alone)
            << setting.name << ", resumed on " << size << " ranks, " << name_of(mode);
      }
    }
  }
}

// Rows give what dense gradients give, whatever the rule, and whether it looks at all rows or not.
TEST(SparseGradients, ExactlyAreWhatDenseOnesAre) {
  const std::vector<std::shared_ptr<const Optimizer>> rules = {
      std::make_shared<Sgd>(SgdOptions{.lr = 0.05}),
      std::make_shared<Sgd>(SgdOptions{.lr = 0.05, .momentum = 0.9}),
      std::make_shared<Adagrad>(AdagradOptions{.lr = 0.05}),
      std::make_shared<Adagrad>(AdagradOptions{.lr = 0.05, .weight_decay = 0.1}),
      std::make_shared<Rmsprop>(),
      std::make_shared<Lion>(),
      std::make_shared<Lamb>(),
      std::make_shared<Adafactor>(),
  };
  for (const int size : {1, 3}) {
    in_world(size, [&](const std::shared_ptr<World>& world) {
      for (const auto& rule : rules) {
        for (const Mode& mode : modes()) {
          SCOPED_TRACE(rule->name() + ", " + rule->settings() + ", " + name_of(mode));
          std::vector<Tensor> tables, averages, gradients;
          std::vector<double> norms;
          for (const bool sparse : {false, true}) {
            Net model(sparse);
            Engine engine(model, *rule, in(mode, {.clip_norm = 0.5, .ema_decay = 0.9}), world);
            take_steps(engine, 0, kSteps - 1);
            for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
              engine.backward(engine.forward(ids_of(kSteps - 1, engine.micro_batch(k))));
              if (k + 1 == engine.local_micro_batches()) {
                gradients.push_back(engine.grad("table.weight"));
              }
              engine.step();
            }
            norms.push_back(engine.gradient_norm());
            tables.push_back(whole(engine, model->table->weight));
            averages.push_back(engine.average("table.weight"));
          }
          EXPECT_TRUE(torch::equal(tables[0], tables[1]));
          EXPECT_TRUE(torch::equal(averages[0], averages[1]));
          EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
          EXPECT_EQ(norms[0], norms[1]);
          EXPECT_GT(norms[0], 0);
        }
      }
    });
  }
}

// Masters in float32, weights and gradients of 16 bits: by LibTorch alone, to the bit.
TEST(SparseGradients, OfSixteenBitsAreAddedToExactSums) {
  for (const int size : {1, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      Net plain;
      std::vector<Tensor> masters;
      for (const Tensor& p : plain->parameters()) {
        masters.push_back(p.detach().clone());
      }
      plain->to(torch::kBFloat16);
      for (int step = 0; step < 2; ++step) {
        std::vector<Tensor> sums;
        for (const Tensor& master : masters) {
          sums.push_back(torch::zeros_like(master));
        }
        for (std::int64_t m = 0; m < kMicroBatches; ++m) {
          plain->zero_grad(/*set_to_none=*/true);
          plain->forward(ids_of(step, m, /*repeated=*/false)).backward();
          for (std::size_t p = 0; p < sums.size(); ++p) {
            const Tensor g = plain->parameters()[p].grad();
            sums[p] += (g.is_sparse() ? g.to_dense() : g).to(torch::kFloat);
          }
        }
        const torch::NoGradGuard no_grad;
        for (std::size_t p = 0; p < sums.size(); ++p) {
          masters[p] -= 0.0625 * (sums[p] / static_cast<double>(kMicroBatches));
          plain->parameters()[p].copy_(masters[p]);
        }
      }
      for (const Mode& mode : modes()) {
        SCOPED_TRACE(name_of(mode));
        Net model;
        EngineOptions options{.sparse_update = SparseUpdate::kLazy};
        options.precision = Precision::kBFloat16;
        Engine engine(model, Sgd({.lr = 0.0625}), in(mode, options), world);
        take_steps(engine, 0, 2, /*repeated=*/false);
        EXPECT_TRUE(
            torch::equal(whole(engine, model->table->weight), plain->table->weight.detach()));
      }
    });
  }
}

// --- what travels and what is kept

constexpr std::int64_t kMany = 20000;
constexpr std::int64_t kWide = 8;  // two rows are 64 bytes: no row is divided
constexpr std::int64_t kRowBytes = kWide * 4 + 8;
constexpr std::int64_t kTableBytes = kMany * kWide * 4;

Tensor few_of(int step, int rank) {
  return torch::tensor({7 * step, 9000 + step, 19999 - rank, 13000 + rank, 7 * step}, torch::kLong);
}

TEST(SparseGradients, AreAllThatTravelsAndIsKept) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [size](const std::shared_ptr<World>& world) {
      const std::vector<std::pair<std::shared_ptr<const Optimizer>, SparseUpdate>> ways = {
          {std::make_shared<AdamW>(), SparseUpdate::kLazy},
          {std::make_shared<Sgd>(SgdOptions{.lr = 0.1}), SparseUpdate::kExact}};
      for (const auto& [rule, update] : ways) {
        for (const Mode& mode : modes()) {
          SCOPED_TRACE(rule->name() + ", " + name_of(mode));
          Net model(true, kMany, kWide);
          Engine engine(model,
                        *rule,
                        {.zero = mode.zero, .placement = mode.placement, .sparse_update = update},
                        world);
          const auto owner_of = [&](std::int64_t row) {
            for (int rank = 0; rank < size; ++rank) {
              const Range lines = even_range(kMany * kWide / 16, size, rank);
              if (row * kWide / 16 < lines.end) {
                return rank;
              }
            }
            return -1;
          };
          SparseUse expected;
          for (int step = 0; step < 3; ++step) {
            const std::int64_t bytes = world->use().bytes;
            engine.backward(engine.forward(few_of(step, world->rank())));
            engine.step();
            // At stage 3 copied, forward reads all of the table.
            if (mode.zero < 3) {
              EXPECT_LT(world->use().bytes - bytes, 3000) << "of " << kTableBytes;
            }
            std::set<std::int64_t> mine;
            for (int rank = 0; rank < size; ++rank) {
              for (const std::int64_t row :
                   std::set<std::int64_t>{7 * step, 9000 + step, 19999 - rank, 13000 + rank}) {
                const int owner = owner_of(row);
                if (rank == world->rank() && owner != rank) {
                  expected.gradient_bytes += kRowBytes;
                }
                if (owner == world->rank()) {
                  mine.insert(row);
                }
              }
            }
            const std::int64_t sent =
                static_cast<std::int64_t>(mine.size()) * kRowBytes * (size - 1);
            expected.gradient_bytes += mode.zero == 0 ? sent : 0;
            expected.weight_bytes += mode.zero == 1 || mode.zero == 2 ? sent : 0;
          }
          EXPECT_EQ(engine.sparse().gradient_bytes, expected.gradient_bytes);
          EXPECT_EQ(engine.sparse().weight_bytes, expected.weight_bytes);
          EXPECT_EQ(engine.sparse().dense_bytes > kTableBytes, size > 1);
          EXPECT_EQ(engine.sparse().dense_bytes == 0, size == 1);
          const auto gradients = static_cast<std::size_t>(MemoryCategory::kGradients);
          EXPECT_LT(engine.memory().peak[gradients], 4000);
        }
      }
    });
  }
}

// --- refusals

TEST(SparseGradients, AreRefusedLazilyWhereARuleLooksAtMoreThanAnElement) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const EngineOptions lazy{.sparse_update = SparseUpdate::kLazy};
    struct OfAUser final : Optimizer {
      std::string name() const override { return "mine"; }
      double learning_rate() const override { return 1; }
      std::vector<OptimizerState> states(const ParameterInfo&) const override { return {}; }
      void update(const ParameterSlice&, const GradientTransform&, double) const override {}
      std::unique_ptr<Optimizer> clone() const override { return std::make_unique<OfAUser>(*this); }
    };
    const std::vector<std::shared_ptr<const Optimizer>> rules = {
        std::make_shared<Lamb>(), std::make_shared<Adafactor>(), std::make_shared<OfAUser>()};
    for (const auto& rule : rules) {
      Net model;
      const std::string message =
          message_of<ConfigError>([&] { Engine engine(model, *rule, lazy, world); });
      for (const std::string& part :
           {rule->name(), std::string("table.weight"), std::string("SparseUpdate::kExact")}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
      // Where it updates other parameters, it is welcome.
      Net other;
      const ParameterGroups groups(*rule, {{named({"table.*"}), Adagrad({.lr = 0.1})}});
      Engine engine(other, groups, lazy, world);
    }
    // One rank that would do otherwise.
    Net model;
    EngineOptions options;
    options.sparse_update = world->rank() == 0 ? SparseUpdate::kExact : SparseUpdate::kLazy;
    const std::string message =
        message_of<ConfigError>([&] { Engine engine(model, Sgd(), options, world); });
    EXPECT_NE(message.find("sparse_update"), std::string::npos) << message;
  });
}

// --- without an engine

TEST(SparseGradients, OfDataParallelAreTheMeanInGrad) {
  in_world(3, [](const std::shared_ptr<World>& world) {
    Net model;
    DataParallel parallel(model, {}, world);
    parallel.backward(parallel.forward(ids_of(0, world->rank())));
    Tensor expected = torch::zeros({kRows, kWidth});
    Net plain(/*sparse=*/false);
    for (std::int64_t m = 0; m < 3; ++m) {
      plain->zero_grad(/*set_to_none=*/true);
      plain->forward(ids_of(0, m)).backward();
      expected += plain->table->weight.grad();
    }
    EXPECT_TRUE(torch::equal(model->table->weight.grad(), expected / 3));
  });
}

}  // namespace
}  // namespace trireme::sparse_gradients_test
