// trireme-bench-optim [--numel N] [--rounds R] [--json FILE]: what `trireme bench optim` runs.
//
// Times one update of N parameters, one thread, by Trireme, by torch::optim, by torch's fused
// kernel where there is one, and by a loop that moves the same bytes and computes next to nothing
// (the limit). All take turns (turn_order.h); the table shows medians. The lists of tensors that
// torch's take are made before the clock starts.

#include <cstdio>
#include <functional>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/optim.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "arguments.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "same_terms.h"
#include "samples.h"
#include "trireme/core/counted.h"
#include "trireme/core/deadline.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "trireme/optim/optimizer.h"
#include "turn_order.h"

#if defined(__x86_64__)
#define TRIREME_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRIREME_WIDEST
#endif

namespace trireme::bench {
namespace {

using at::Tensor;

TRIREME_WIDEST void stream0(float* __restrict p, const float* __restrict g, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = p[i] - g[i];
  }
}

TRIREME_WIDEST void stream1(float* __restrict p,
                            const float* __restrict g,
                            float* __restrict s,
                            std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = p[i] - g[i];
    s[i] = s[i] + g[i];
  }
}

TRIREME_WIDEST void stream2(float* __restrict p,
                            const float* __restrict g,
                            float* __restrict s,
                            float* __restrict t,
                            std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = p[i] - g[i];
    s[i] = s[i] + g[i];
    t[i] = t[i] + g[i];
  }
}

// Flat memory for one contender, cut into as many tensors as a model might have.
struct Memory {
  static constexpr std::int64_t kTensors = 48;

  explicit Memory(std::int64_t numel)
      : parameter(torch::randn({numel})),
        gradient(torch::randn({numel}) * 0.01),
        first(torch::zeros({numel})),
        second(torch::zeros({numel})) {}
  static std::vector<Tensor> cut(const Tensor& flat) {
    std::vector<Tensor> parts;
    for (const Tensor& part : flat.chunk(kTensors)) {
      parts.push_back(part);
    }
    return parts;
  }

  Tensor parameter, gradient, first, second;
};

// The same cut into tensors, as torch's fused kernels take it.
struct Lists {
  explicit Lists(const Memory& memory)
      : parameters(Memory::cut(memory.parameter)),
        gradients(Memory::cut(memory.gradient)),
        first(Memory::cut(memory.first)),
        second(Memory::cut(memory.second)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      steps.push_back(torch::ones({}));
    }
  }

  std::vector<Tensor> parameters, gradients, first, second, steps;
};

constexpr const char* kSettings =
    "ours: one flat slice; torch::optim and torch fused: the same memory as 48 tensors, their "
    "lists created once; one thread each, freed memory kept";

struct Contender {
  std::string name;
  std::function<void()> step;
  std::vector<double> times;
};

struct Case {
  std::unique_ptr<Optimizer> ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>
      theirs;                               // empty: torch has none
  std::function<void(const Lists&)> fused;  // empty: torch has none
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back(
      {std::make_unique<Sgd>(SgdOptions{.lr = 1e-3, .momentum = 0.9}),
       [](const std::vector<Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
         return std::make_unique<torch::optim::SGD>(parameters,
                                                    torch::optim::SGDOptions(1e-3).momentum(0.9));
       },
       [](const Lists& lists) {
         at::_fused_sgd_(
             lists.parameters, lists.gradients, lists.first, 0, 0.9, 1e-3, 0, false, false, false);
       }});
  all.push_back(
      {std::make_unique<Adam>(),
       [](const std::vector<Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
         return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
       },
       [](const Lists& lists) {
         at::_fused_adam_(lists.parameters,
                          lists.gradients,
                          lists.first,
                          lists.second,
                          {},
                          lists.steps,
                          1e-3,
                          0.9,
                          0.999,
                          0,
                          1e-8,
                          false,
                          false);
       }});
  all.push_back(
      {std::make_unique<AdamW>(),
       [](const std::vector<Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
         return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
       },
       [](const Lists& lists) {
         at::_fused_adamw_(lists.parameters,
                           lists.gradients,
                           lists.first,
                           lists.second,
                           {},
                           lists.steps,
                           1e-3,
                           0.9,
                           0.999,
                           1e-2,
                           1e-8,
                           false,
                           false);
       }});
  all.push_back(
      {std::make_unique<Adagrad>(),
       [](const std::vector<Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
         return std::make_unique<torch::optim::Adagrad>(parameters,
                                                        torch::optim::AdagradOptions(1e-2));
       },
       {}});
  all.push_back({std::make_unique<Lion>(), {}, {}});
  all.push_back({std::make_unique<Lamb>(), {}, {}});
  return all;
}

nlohmann::json measure(const Case& entry, std::int64_t numel, int rounds, Table& table) {
  Memory mine(numel);
  Memory limit(numel);
  const std::size_t states = entry.ours->states({}).size();
  std::int64_t step = 0;
  std::vector<Contender> contenders;
  contenders.push_back({"ours",
                        [&] {
                          ParameterSlice slice;
                          slice.master = mine.parameter.data_ptr();
                          slice.gradient = mine.gradient.data_ptr();
                          slice.states = {mine.first.data_ptr(), mine.second.data_ptr()};
                          slice.numel = numel;
                          slice.step = ++step;
                          entry.ours->update(slice, {}, 1e-3);
                        },
                        {}});
  contenders.push_back({"stream",
                        [&] {
                          auto* p = limit.parameter.data_ptr<float>();
                          const auto* g = limit.gradient.data_ptr<float>();
                          auto* s = limit.first.data_ptr<float>();
                          auto* t = limit.second.data_ptr<float>();
                          states == 0   ? stream0(p, g, numel)
                          : states == 1 ? stream1(p, g, s, numel)
                                        : stream2(p, g, s, t, numel);
                        },
                        {}});
  std::unique_ptr<Memory> torchs;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (entry.theirs) {
    torchs = std::make_unique<Memory>(numel);
    auto parameters = Memory::cut(torchs->parameter);
    const auto gradients = Memory::cut(torchs->gradient);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i] = parameters[i].detach().requires_grad_();
      parameters[i].mutable_grad() = gradients[i];
    }
    optimizer = entry.theirs(parameters);
    contenders.push_back({"torch", [&] { optimizer->step(); }, {}});
  }
  std::unique_ptr<Lists> lists;
  if (entry.fused) {
    lists = std::make_unique<Lists>(Memory(numel));
    contenders.push_back({"fused", [&] { entry.fused(*lists); }, {}});
  }
  std::vector<Contender*> all;
  for (Contender& contender : contenders) {
    contender.step();  // a warm-up
    all.push_back(&contender);
  }
  for (int round = 0; round < rounds; ++round) {
    for (Contender* contender : turn_order(all, round, rounds)) {
      const auto start = Clock::now();
      contender->step();
      contender->times.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  const auto find = [&](const std::string& name) {
    for (const Contender& contender : contenders) {
      if (contender.name == name) {
        return median(contender.times);
      }
    }
    return 0.0;
  };
  const double ours = find("ours");
  nlohmann::json line = {{"optimizer", entry.ours->name()},
                         {"numel", numel},
                         {"ms", ours},
                         {"torch_ms", nullptr},
                         {"fused_ms", nullptr},
                         {"stream_ms", find("stream")},
                         {"settings", kSettings}};
  std::vector<std::string> row = {entry.ours->name(), number_text(ours)};
  for (const char* name : {"torch", "fused", "stream"}) {
    const double time = find(name);
    if (time > 0) {
      line[std::string(name) + "_ms"] = time;
    }
    row.push_back(time > 0 ? number_text(time) : "-");
    row.push_back(time > 0 ? number_text(ours / time) : "");
  }
  table.add(row);
  return line;
}

int run(int argc, char** argv) {
  std::int64_t numel = 25'000'000;
  int rounds = 9;
  std::string json_path;
  CLI::App program(
      "Measure each optimizer next to torch's and to the limit set by memory, with one thread.",
      "trireme bench optim");
  program.add_option("--numel", numel, "Number of parameters (default: 25000000)")
      ->check(CLI::Range(1LL, 1LL << 33));
  program
      .add_option(
          "--rounds", rounds, "Number of rounds in which the contenders take turns (default: 9)")
      ->check(CLI::Range(1, 1000));
  program.add_option("--json", json_path, "Also write the table as JSON")->type_name("FILE");
  if (const auto code = take_arguments(program, argc, argv)) {
    return *code;
  }
  JsonFile file(json_path);
  at::set_num_threads(1);
  keep_freed_memory();
  const torch::NoGradGuard no_grad;
  Table table({"optimizer",
               "ms",
               "torch::optim",
               "ours/it",
               "torch fused",
               "ours/it",
               "stream",
               "ours/it"});
  nlohmann::json lines = nlohmann::json::array();
  for (const Case& entry : cases()) {
    lines.push_back(measure(entry, numel, rounds, table));
  }
  std::printf("Trireme %s, LibTorch %s, %lld float32 parameters, median ms of %s\n%s\n%s%s",
              TRIREME_VERSION,
              TORCH_VERSION,
              static_cast<long long>(numel),
              detail::counted(rounds, "round").c_str(),
              kSettings,
              host_text(command_line(argc, argv)).c_str(),
              table.text().c_str());
  file.write(lines.dump(1));
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  return trireme::bench::exit_code_of([&] { return trireme::bench::run(argc, argv); });
}
