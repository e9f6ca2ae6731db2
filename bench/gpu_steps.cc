#include "gpu_steps.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include <ATen/ops/_fused_adamw.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "number_text.h"
#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "trireme/comm/world.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/models/gpt.h"
#include "trireme/models/mlp.h"
#include "trireme/parallel/engine.h"
#include "trireme/tensor/torch_cuda.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

constexpr int kGpuWarmUp = 5;

// What is trained: peers/torch_gpu_step.py has the same numbers.
struct GpuSetting {
  const char* name;
  const char* text;
  double per_step;  // tokens or samples
  const char* unit;
};
constexpr GpuSetting kGpuSettings[] = {
    {"gpt2", "GPT-2 124M, bfloat16, 32 x 1024 tokens", 32 * 1024, "tokens"},
    {"mlp", "mlp 784-256-256-10, float32, batch 64", 64, "samples"},
};

// One step's loss from what it is given to learn.
struct Learner {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> loss;
};

Learner learner_of(const std::string& setting, at::Device gpu) {
  torch::manual_seed(0);
  if (setting == "gpt2") {
    models::Gpt model(models::GptOptions::of_size(TextSize::kGpt2));
    model->to(gpu, at::kBFloat16);
    const auto text = torch::randint(0, 50257, {32, 1025}, at::kLong).to(gpu);
    return {model.ptr(), [model, text]() mutable { return model->loss(text); }};
  }
  models::Mlp model(models::MlpOptions{.inputs = 784, .hidden = {256, 256}, .outputs = 10});
  model->to(gpu);
  const auto images = torch::rand({64, 784}).to(gpu);
  const auto labels = torch::randint(0, 10, {64}, at::kLong).to(gpu);
  return {model.ptr(), [=]() mutable {
            return torch::nn::functional::cross_entropy(model->forward(images), labels);
          }};
}

// What somebody who knows LibTorch well writes: AdamW in one fused kernel.
class PlainLoop {
 public:
  explicit PlainLoop(const torch::nn::Module& module) : parameters_(module.parameters()) {
    for (const at::Tensor& each : parameters_) {
      first_.push_back(torch::zeros_like(each));
      second_.push_back(torch::zeros_like(each));
      steps_.push_back(torch::zeros({}, each.options().dtype(at::kFloat)));
    }
  }
  void step(const at::Tensor& loss) {
    loss.backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back(parameters_[i].grad());
      steps_[i].add_(1);
      parameters_[i].mutable_grad().reset();
    }
    at::_fused_adamw_(parameters_,
                      gradients,
                      first_,
                      second_,
                      {},
                      steps_,
                      /*lr=*/3e-4,
                      /*beta1=*/0.9,
                      /*beta2=*/0.999,
                      /*weight_decay=*/0.01,
                      /*eps=*/1e-8,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> first_, second_, steps_;
};

struct GpuMeasured {
  std::vector<double> ms;
  double memory_bytes = 0;
  std::string system;
};

std::vector<std::string> own_command(const std::string& system,
                                     const std::string& setting,
                                     int steps,
                                     const std::string& output) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(),
          "--worker",
          system,
          "--setting",
          setting,
          "--steps",
          std::to_string(steps),
          "--output",
          output};
}

}  // namespace

int run_gpu_steps(const std::string& system,
                  const std::string& setting,
                  int steps,
                  const std::string& output) {
  const at::Device gpu = use_gpu(0);
  if (system == "libtorch") {
    at::globalContext().setDeterministicAlgorithms(false, false);  // as people have it
  }
  Learner learner = learner_of(setting, gpu);
  std::function<void(const at::Tensor&)> step;
  const auto world = init();
  std::unique_ptr<EngineBase> engine;
  std::unique_ptr<PlainLoop> plain;
  if (system == "engine") {
    auto made = std::make_unique<Engine<torch::nn::Module>>(
        learner.module, AdamW({.lr = 3e-4}), EngineOptions{}, world);
    step = [made = made.get()](const at::Tensor& loss) {
      made->backward(loss);
      made->step();
    };
    engine = std::move(made);
  } else {
    plain = std::make_unique<PlainLoop>(*learner.module);
    step = [&plain](const at::Tensor& loss) { plain->step(loss); };
  }
  std::vector<double> times;
  for (int i = -kGpuWarmUp; i < steps; i += 5) {
    const auto start = Clock::now();
    at::Tensor loss;
    for (int k = 0; k < 5; ++k) {  // the host does not wait for each
      loss = learner.loss();
      step(loss);
    }
    TRIREME_CHECK(std::isfinite(loss.item<double>()), "the loss is not finite");
    if (i >= 0) {
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() / 5);
    }
  }
  const auto stats = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0);
  std::ofstream(output) << Json{
      {"ms", times}, {"memory_bytes", stats.allocated_bytes[0].peak}, {"system", "LibTorch"}};
  return 0;
}

Json measure_gpu_steps(const GpuStepOptions& options) {
  const ScratchFolder scratch;
  const std::string output = scratch.file("step.json");
  std::vector<std::string> systems = {"engine", "libtorch"};
  if (options.peers) {
    systems.insert(systems.end(), {"torch-eager", "torch-compile"});
  }
  Json lines = Json::array();
  std::printf("Steps on one GPU, one rank, medians of %d rounds in turns\n", options.rounds);
  for (const GpuSetting& setting : kGpuSettings) {
    Table table({"model", "system", "ms", "per second", "engine / this", "memory"});
    std::map<std::string, GpuMeasured> measured;
    std::map<std::string, std::string> missing;
    for (int round = 0; round < options.rounds; ++round) {
      for (const std::string& system : turn_order(systems, round, options.rounds)) {
        std::fprintf(stderr, "%s, round %d: %s\n", setting.name, round + 1, system.c_str());
        const bool own = !system.starts_with("torch-");
        const Peer peer = own ? Peer{} : gpu_step_peer(system, setting.name, options.steps, output);
        if (!own && !peer.missing.empty()) {
          missing[system] = peer.missing;
          continue;
        }
        const int code = run_command(own ? own_command(system, setting.name, options.steps, output)
                                         : peer.command);
        if (code != 0) {
          TRIREME_CHECK(!own, system, " ended with ", code);
          missing[system] = detail::concat("it ended with ", code);
          continue;
        }
        std::ifstream file(output);
        const Json result = Json::parse(file);
        GpuMeasured& of = measured[system];
        for (const double ms : result.at("ms")) {
          of.ms.push_back(ms);
        }
        of.memory_bytes = result.at("memory_bytes");
        of.system = result.at("system");
      }
    }
    const double ours = median(measured.at("engine").ms);
    for (const std::string& system : systems) {
      const auto found = measured.find(system);
      if (found == measured.end()) {
        table.add({setting.text, system, "not measured: " + missing[system], "", "", ""});
        continue;
      }
      const double ms = median(found->second.ms);
      table.add({setting.text,
                 system,
                 number_text(ms),
                 number_text(setting.per_step / ms * 1e3),
                 number_text(ours / ms),
                 bytes_text(static_cast<long long>(found->second.memory_bytes))});
      lines.push_back({{"model", setting.name},
                       {"system", system},
                       {"version", found->second.system},
                       {"ms", found->second.ms},
                       {detail::concat(setting.unit, "_per_second"), setting.per_step / ms * 1e3},
                       {"memory_bytes", found->second.memory_bytes}});
    }
    std::printf("%s", table.text().c_str());
    std::fflush(stdout);  // compiling takes minutes: what there is, is shown
  }
  return lines;
}

}  // namespace trireme::bench
