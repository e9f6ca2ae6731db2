// Engines with a model on a GPU, several ranks on one: a plain loop of LibTorch = DDP = ZeRO-1 =
// ZeRO-2 = ZeRO-3 on 1, 2 and 3 ranks, bit for bit.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/driver.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/parallel/engine.h"
#include "trireme/tensor/torch_cuda.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr std::int64_t kMicroBatches = 6;
constexpr std::int64_t kSteps = 4;

struct Mode {
  const char* name;
  int zero;
  Placement placement = Placement::kAutomatic;
};
constexpr Mode kModes[] = {{"0", 0},
                           {"1", 1},
                           {"2", 2},
                           {"3 mapped", 3, Placement::kMapped},
                           {"3 copied", 3, Placement::kCopied}};

// Ranks alone open the GPU: neither a driver nor LibTorch's CUDA comes along with fork.
class GpuParity : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::in_shared_memory()) {
      GTEST_SKIP() << testing::kOtherSize << "shared memory";
    }
    if (access("/dev/nvidiactl", F_OK) != 0) {
      GTEST_SKIP() << "no GPU here: /dev/nvidiactl is not there";
    }
    if (torch_cuda_library().empty()) {
      GTEST_SKIP() << "no GPU here: this LibTorch has no CUDA";
    }
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  }

  static void fork_ranks(int size, const std::function<void(std::shared_ptr<World>)>& body) {
    const std::string job = testing::unique_job();
    testing::fork_ranks(size, [&](int rank) {
      // Before anything asks LibTorch whether it has CUDA.
      load_torch_cuda();
      at::globalContext().setDeterministicAlgorithms(true, false);
      body(init(testing::options_for(job, rank, size)));
    });
  }
};

struct Net : nn::Module {
  nn::Embedding tokens{nullptr};
  nn::Linear up{nullptr}, down{nullptr}, head{nullptr}, sometimes{nullptr}, frozen{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Dropout dropout{nullptr};
  Tensor offset;
  explicit Net(double rate) {
    tokens = register_module("tokens", nn::Embedding(31, 24));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({24})));
    up = register_module("up", nn::Linear(24, 50));
    dropout = register_module("dropout", nn::Dropout(rate));
    down = register_module("down", nn::Linear(nn::LinearOptions(50, 24).bias(false)));
    head = register_module("head", nn::Linear(24, 31));
    sometimes = register_module("sometimes", nn::Linear(24, 24));
    frozen = register_module("frozen", nn::Linear(24, 24));
    for (Tensor& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
    offset = register_buffer("offset", torch::full({24}, 0.125));
  }
  Tensor forward(const Tensor& in, bool uses_all) {
    Tensor x = tokens->forward(in);
    if (uses_all) {
      x = x + sometimes->forward(frozen->forward(x));
    }
    x = x + down->forward(dropout->forward(torch::gelu(up->forward(norm->forward(x)))));
    return head->forward(x + offset.to(x.scalar_type()));
  }
};

std::shared_ptr<Net> made_model(double dropout) {
  torch::manual_seed(3);
  auto model = std::make_shared<Net>(dropout);
  model->to(torch::kCUDA);
  return model;
}

Tensor loss_of(Net& model, std::int64_t step, std::int64_t m) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(step * 1009 + m * 31 + 7));
  const Tensor text = torch::randint(0, 31, {16, 9}, generator, torch::kLong).to(torch::kCUDA);
  torch::manual_seed(step * 100 + m);  // of dropout: the micro-batch's, whoever computes it
  const Tensor out = model.forward(text.slice(1, 0, 8), m % 3 == 1);
  return nn::functional::cross_entropy(out.flatten(0, 1).to(torch::kFloat),
                                       text.slice(1, 1).flatten());
}

std::string bytes_of(const Net& model) {
  std::string bytes;
  for (const Tensor& parameter : model.parameters()) {
    const Tensor here = parameter.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(here.data_ptr()), here.nbytes());
  }
  return bytes;
}

std::string train(const Optimizer& optimizer,
                  const EngineOptions& options,
                  double dropout,
                  const std::shared_ptr<World>& world) {
  const auto model = made_model(dropout);
  Engine<Net> engine(model, optimizer, options, world);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(loss_of(engine.model(), step, engine.micro_batch(k)));
      engine.step();
    }
  }
  EXPECT_EQ(engine.steps(), kSteps);
  engine.unwrap();
  return bytes_of(*model);
}

// SGD by operators of LibTorch alone.
std::string train_plainly(double rate) {
  const auto model = made_model(0);
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) {
      parameters.push_back(parameter);
    }
  }
  // Not a number of the host, by whose reciprocal LibTorch would multiply.
  const Tensor count = torch::full({}, static_cast<double>(kMicroBatches), torch::kCUDA);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<Tensor> sums(parameters.size());
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      const auto gradients = torch::autograd::grad(
          {loss_of(*model, step, m)}, parameters, {}, {}, false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (gradients[i].defined()) {
          sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i].clone();
        }
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      parameters[i].sub_(sums[i].div(count).mul(rate));
    }
  }
  return bytes_of(*model);
}

struct Case {
  std::string name;
  std::unique_ptr<Optimizer> optimizer;
  EngineOptions options;
  double dropout = 0;
  bool by_size = false;  // its sums depend on the number of ranks
};

// Small units and buckets: several of each.
EngineOptions small_parts() {
  EngineOptions options;
  options.micro_batches = kMicroBatches;
  options.unit_bytes = 4000;
  options.bucket_bytes = 2000;
  return options;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  cases.push_back({"plain", std::make_unique<Sgd>(SgdOptions{.lr = 0.1}), small_parts()});
  EngineOptions clipped = small_parts();
  clipped.clip_norm = 0.5;
  cases.push_back({"float32", std::make_unique<AdamW>(AdamWOptions{.lr = 0.01}), clipped, 0.1});
  clipped.precision = Precision::kBFloat16;
  cases.push_back({"bfloat16", std::make_unique<AdamW>(AdamWOptions{.lr = 0.01}), clipped, 0.1});
  EngineOptions few = small_parts();  // gradients come in another order at first: the ring grows
  few.bucket_count = 1;
  few.precision = Precision::kBFloat16;
  cases.push_back({"few buckets", std::make_unique<AdamW>(AdamWOptions{.lr = 0.01}), few, 0.1});
  EngineOptions half = small_parts();
  half.precision = Precision::kFloat16;
  half.loss_scale.initial = 256;
  cases.push_back({"float16", std::make_unique<Lion>(LionOptions{.lr = 0.001}), half});
  EngineOptions local = clipped;
  local.sum_order = SumOrder::kLocalFirst;
  cases.push_back({"local", std::make_unique<Adam>(), local, 0.1, true});
  EngineOptions bounded = small_parts();
  bounded.clip_value = 0.01;
  cases.push_back(
      {"groups",
       std::make_unique<ParameterGroups>(
           Sgd({.lr = 0.1, .momentum = 0.9}),
           std::vector<ParameterGroup>{{named({"norm.*"}), GroupOptions{.weight_decay = 0.1}}}),
       bounded});
  cases.push_back({"lamb", std::make_unique<Lamb>(LambOptions{.lr = 0.01}), clipped, 0.1});
  cases.push_back({"adafactor", std::make_unique<Adafactor>(), small_parts(), 0.1});
  const auto matrices = [](const ParameterInfo& parameter) {
    return parameter.sizes.size() == 2 && parameter.name != "tokens.weight";
  };
  cases.push_back({"muon",
                   std::make_unique<ParameterGroups>(
                       AdamW({.lr = 0.01}),
                       std::vector<ParameterGroup>{{Selection(matrices), Muon({.lr = 0.02})}}),
                   small_parts(),
                   0.1});
  return cases;
}

TEST_F(GpuParity, EveryStageGivesTheBitsOfOnePlainProcess) {
  const testing::TemporaryFolder folder;
  const auto file = [&](const std::string& name) { return folder.path() + "/" + name; };
  fork_ranks(1, [&](const std::shared_ptr<World>&) {
    std::ofstream(file("oracle"), std::ios::binary) << train_plainly(0.1);
  });
  const std::string oracle = testing::read_file(file("oracle"));
  ASSERT_GT(oracle.size(), 10'000U);
  for (const int size : {1, 2, 3}) {
    fork_ranks(size, [&](const std::shared_ptr<World>& world) {
      for (const Case& each : all_cases()) {
        for (const Mode& mode : kModes) {
          EngineOptions options = each.options;
          options.zero = mode.zero;
          options.placement = mode.placement;
          const std::string bytes = train(*each.optimizer, options, each.dropout, world);
          std::ofstream(
              file(detail::concat(each.name, "-", size, "-", mode.name, "-", world->rank())),
              std::ios::binary)
              << bytes;
        }
      }
    });
    if (HasFailure()) {
      return;  // ranks that are forked from here on would inherit it
    }
    for (const Case& each : all_cases()) {
      const std::string wanted = each.name == "plain"
                                     ? oracle
                                     : testing::read_file(file(detail::concat(
                                           each.name, "-", each.by_size ? size : 1, "-0-0")));
      EXPECT_GT(wanted.size(), 5'000U) << each.name;
      for (const Mode& mode : kModes) {
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_TRUE(testing::read_file(file(detail::concat(
                          each.name, "-", size, "-", mode.name, "-", rank))) == wanted)
              << each.name << ", stage " << mode.name << ", rank " << rank << " of " << size;
        }
      }
    }
  }
  // It was trained, and the cases are different ones.
  EXPECT_NE(testing::read_file(file("float32-1-0-0")), testing::read_file(file("groups-1-0-0")));
}

// Where states are changes no bit: on the GPU, in the host's memory, on a disk.
TEST_F(GpuParity, StatesThatAreElsewhereGiveTheSameBits) {
  for (const int size : {1, 2}) {
    fork_ranks(size, [&](const std::shared_ptr<World>& world) {
      const testing::TemporaryFolder folder;
      for (const Case& each : all_cases()) {
        if (!each.optimizer->passes().empty() || each.optimizer->takes_whole_parameters()) {
          continue;  // refused
        }
        EngineOptions options = each.options;
        options.ema_decay = 0.75;
        options.threads = 3;
        const auto trained = [&] {
          const auto model = made_model(each.dropout);
          Engine<Net> engine(model, *each.optimizer, options, world);
          for (std::int64_t step = 0; step < kSteps; ++step) {
            for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
              engine.backward(loss_of(engine.model(), step, engine.micro_batch(k)));
              engine.step();
            }
          }
          const Tensor average = engine.average("up.weight").cpu().contiguous();
          engine.unwrap();
          return bytes_of(*model) +
                 std::string(static_cast<const char*>(average.data_ptr()), average.nbytes());
        };
        const std::string wanted = trained();
        for (const int zero : {0, 1, 3}) {
          for (const bool on_disk : {false, true}) {
            options.zero = zero;
            options.offload = on_disk ? Offload::disk(folder.path()) : Offload::host();
            EXPECT_TRUE(trained() == wanted)
                << each.name << ", stage " << zero << (on_disk ? ", on a disk" : ", on the host");
          }
        }
      }
    });
    if (HasFailure()) {
      return;
    }
  }
}

// Tensors of a state by kind and name, whole: of a rank alone.
using Saved = std::map<std::string, std::string>;

std::string key_of(const StateTensor& tensor) {
  return tensor.kind + " " + tensor.name;
}

Saved saved(EngineBase& engine) {
  const EngineState state = engine.state();
  Saved all;
  for (const auto& slice : state.view.slices) {
    const StateTensor& tensor = state.view.tensors[slice.tensor];
    std::string bytes(static_cast<std::size_t>(slice.range.size()) * dtype_bytes(tensor.dtype), 0);
    slice.read(0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
    all[key_of(tensor)] += bytes;
  }
  return all;
}

void restore(EngineBase& engine, const Saved& from, const std::string& progress) {
  engine.restore(
      [&](const StateView& into) {
        for (const auto& slice : into.slices) {
          const StateTensor& tensor = into.tensors[slice.tensor];
          const std::size_t element = dtype_bytes(tensor.dtype);
          slice.write(0,
                      reinterpret_cast<const std::byte*>(from.at(key_of(tensor)).data()) +
                          static_cast<std::size_t>(slice.range.begin) * element,
                      static_cast<std::size_t>(slice.range.size()) * element);
        }
      },
      progress);
}

TEST_F(GpuParity, AStateGoesFromTheGpuToTheCpuAndBack) {
  fork_ranks(1, [&](const std::shared_ptr<World>& world) {
    EngineOptions options = small_parts();
    options.precision = Precision::kBFloat16;
    const auto steps = [&](Engine<Net>& engine, std::int64_t from, std::int64_t to) {
      for (std::int64_t step = from; step < to; ++step) {
        for (std::int64_t m = 0; m < kMicroBatches; ++m) {
          engine.backward(loss_of(engine.model(), step, m));
          engine.step();
        }
      }
    };
    options.zero = 3;
    Engine<Net> first(made_model(0.1), AdamW(), options, world);
    steps(first, 0, 2);
    const Saved after_two = saved(first);
    const std::string progress = first.progress();
    steps(first, 2, 4);

    options.zero = 1;
    torch::manual_seed(99);
    const auto here = std::make_shared<Net>(0.1);
    Engine<Net> on_cpu(here, AdamW(), options, world);
    restore(on_cpu, after_two, progress);
    const Saved from_cpu = saved(on_cpu);
    EXPECT_EQ(from_cpu, after_two);

    options.zero = 2;
    const testing::TemporaryFolder folder;
    for (const Offload& place : {Offload::host(), Offload::disk(folder.path())}) {
      options.offload = place;
      Engine<Net> elsewhere(made_model(0.1), AdamW(), options, world);
      restore(elsewhere, from_cpu, on_cpu.progress());
      EXPECT_EQ(saved(elsewhere), after_two);
      steps(elsewhere, 2, 4);
      EXPECT_EQ(saved(elsewhere), saved(first));
    }
    options.offload = {};
    auto other = made_model(0.1);
    {
      const torch::NoGradGuard no_grad;
      other->up->weight.zero_();
    }
    Engine<Net> second(other, AdamW(), options, world);
    restore(second, from_cpu, on_cpu.progress());
    EXPECT_EQ(saved(second), after_two);
    steps(second, 2, 4);
    EXPECT_EQ(second.steps(), 4);
    EXPECT_EQ(saved(second), saved(first)) << "it goes on as if nothing had happened";
  });
}

// Against operators of LibTorch on the CPU, which round alike.
TEST_F(GpuParity, GradientsAveragesAndGatheredParametersAreWhatTheyAre) {
  for (const int size : {1, 2, 3}) {
    fork_ranks(size, [&](const std::shared_ptr<World>& world) {
      for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
        for (const Mode& mode : kModes) {
          SCOPED_TRACE(detail::concat("stage ", mode.name, " of ", size, " ranks"));
          EngineOptions options = small_parts();
          options.zero = mode.zero;
          options.placement = mode.placement;
          options.precision = precision;
          options.ema_decay = 0.75;
          Engine<Net> engine(made_model(0), Sgd({.lr = 0.5}), options, world);
          const auto weight = [&] {
            const torch::NoGradGuard no_grad;
            return engine.model().head->weight.detach().clone().cpu();
          };
          const Tensor before = weight();
          Tensor gradient;
          for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
            engine.backward(loss_of(engine.model(), 0, engine.micro_batch(k)));
            if (k + 1 == engine.local_micro_batches()) {
              gradient = engine.grad("head.weight");
            }
            engine.step();
          }
          ASSERT_TRUE(gradient.is_cuda());
          const Tensor after = weight();
          if (precision == Precision::kAsModel) {
            EXPECT_TRUE(torch::equal(after, before - gradient.cpu() * 0.5));
            EXPECT_FALSE(torch::equal(after, before));
            EXPECT_TRUE(
                torch::equal(engine.average("head.weight").cpu(), before * 0.75 + after * 0.25));
          }
          {
            auto scope = engine.gathered({"head.weight"});
            const torch::NoGradGuard no_grad;
            engine.model().head->weight.mul_(world->rank() == 0 ? 2 : 7);  // rank 0's count
            scope.close();
          }
          EXPECT_TRUE(torch::equal(weight(), after * 2));
          for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
            engine.backward(loss_of(engine.model(), 1, engine.micro_batch(k)));
            engine.step();
          }
          EXPECT_FALSE(torch::equal(weight(), after * 2));
          engine.unwrap();
        }
      }
    });
    if (HasFailure()) {
      return;
    }
  }
}

TEST_F(GpuParity, ASteadyStepTakesNoMemory) {
  fork_ranks(2, [&](const std::shared_ptr<World>& world) {
    for (const Mode& mode : kModes) {
      EngineOptions options = small_parts();
      options.zero = mode.zero;
      options.placement = mode.placement;
      options.precision = Precision::kBFloat16;
      options.clip_norm = 0.5;
      Engine<Net> engine(made_model(0.1), AdamW(), options, world);
      std::uint64_t after_two = 0;
      for (std::int64_t step = 0; step < 10; ++step) {
        for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
          engine.backward(loss_of(engine.model(), step, engine.micro_batch(k)));
          engine.step();
        }
        const std::uint64_t taken = device::driver({DeviceType::kCuda, 0}).taken();
        if (step == 1) {
          after_two = taken;
        }
        EXPECT_TRUE(step <= 1 || taken == after_two)
            << mode.name << ", step " << step + 1 << ": " << taken - after_two;
      }
    }
  });
}

TEST_F(GpuParity, EnginesRefuseByNameWhatTheyDoNotHaveOnAGpu) {
  fork_ranks(1, [&](const std::shared_ptr<World>& world) {
    const auto refused = [&](const std::function<void()>& call, const std::string& words) {
      const std::string message = testing::message_of<ConfigError>(call);
      EXPECT_NE(message.find(words), std::string::npos) << message;
    };
    const auto build = [&](const Optimizer& optimizer, const EngineOptions& options) {
      const Engine<Net> engine(made_model(0), optimizer, options, world);
    };
    const auto half_moved = made_model(0);
    half_moved->head->to(torch::kCPU);
    refused([&] { const Engine<Net> engine(half_moved, AdamW(), {}, world); },
            "parameter tokens.weight is on cuda:0 and parameter head.weight on cpu");
    Engine<Net> engine(made_model(0), AdamW(), {}, world);
    engine.backward(loss_of(engine.model(), 0, 0));
    EXPECT_TRUE(engine.step());
  });
}

TEST_F(GpuParity, GradientsThatAreNotFiniteStopTheStepByName) {
  fork_ranks(2, [&](const std::shared_ptr<World>& world) {
    Engine<Net> engine(made_model(0), AdamW(), {.zero = 2}, world);
    Tensor loss = loss_of(engine.model(), 0, world->rank());
    if (world->rank() == 1) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    engine.backward(loss);
    const std::string message = testing::message_of<GradientError>([&] { engine.step(); });
    EXPECT_NE(message.find("is not finite on rank 1 in step 1"), std::string::npos) << message;
    engine.backward(loss_of(engine.model(), 0, world->rank()));
    EXPECT_TRUE(engine.step());
  });
}

}  // namespace
}  // namespace trireme
