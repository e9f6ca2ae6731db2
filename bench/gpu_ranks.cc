#include "gpu_ranks.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "number_text.h"
#include "samples.h"
#include "scratch_folder.h"
#include "trireme/comm/world.h"
#include "trireme/core/counted.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/launch/launcher.h"
#include "trireme/models/gpt.h"
#include "trireme/parallel/engine.h"
#include "trireme/tensor/torch_cuda.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

constexpr int kWarmUp = 5;
constexpr int kTogether = 5;  // steps between two looks at the loss

struct GpuMode {
  std::string name;
  EngineOptions options;
};

std::vector<GpuMode> gpu_modes() {
  return {{"ddp", {.zero = 0}},
          {"zero1", {.zero = 1}},
          {"zero2", {.zero = 2}},
          {"zero3 mapped", {.zero = 3, .placement = Placement::kMapped}},
          {"zero3 copied", {.zero = 3, .placement = Placement::kCopied}}};
}

Json measured(const GpuMode& mode,
              const GpuRanksOptions& options,
              at::Device gpu,
              const std::shared_ptr<World>& world) {
  torch::manual_seed(0);
  models::Gpt model(models::GptOptions::of_size(TextSize::kGpt2));
  model->to(gpu, at::kBFloat16);
  const auto text = torch::randint(0, 50257, {1, options.tokens + 1}, at::kLong).to(gpu);
  EngineOptions with = mode.options;
  with.bucket_bytes = options.bucket_bytes;
  with.bucket_count = options.bucket_count;
  Engine engine(model, AdamW({.lr = 3e-4}), with, world);
  std::vector<double> times;
  for (int i = -kWarmUp; i < options.steps; i += kTogether) {
    world->barrier().wait();
    const auto start = Clock::now();
    at::Tensor loss;
    for (int k = 0; k < kTogether; ++k) {
      loss = engine.model().loss(text);
      engine.backward(loss);
      engine.step();
    }
    TRIREME_CHECK(std::isfinite(loss.item<double>()), "the loss is not finite");
    if (i >= 0) {
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() /
                      kTogether);
    }
  }
  std::vector<double> bytes = {static_cast<double>(engine.memory().total())};
  world->all_reduce(bytes).wait();
  return {{"mode", mode.name}, {"ms", times}, {"memory_bytes", bytes[0]}};
}

}  // namespace

int run_gpu_rank(const GpuRanksOptions& options, const std::string& output) {
  const UsableGpus gpus = usable_gpus();
  TRIREME_CHECK(!gpus.names.empty(), "there is no GPU to measure: ", gpus.why_none);
  const auto world = init();
  const at::Device gpu = use_gpu(world->local_rank() % static_cast<int>(gpus.names.size()));
  Json all = Json::array();
  for (int round = 0; round < options.rounds; ++round) {
    for (const GpuMode& mode : turn_order(gpu_modes(), round, options.rounds)) {
      all.push_back(measured(mode, options, gpu, world));
      if (world->rank() == 0) {
        std::fprintf(stderr,
                     "round %d: %s %.3f ms\n",
                     round + 1,
                     mode.name.c_str(),
                     median(all.back().at("ms").get<std::vector<double>>()));
      }
    }
  }
  if (world->rank() == 0) {
    std::ofstream(output) << all;
  }
  world->barrier().wait();
  return 0;
}

Json measure_gpu_ranks(const GpuRanksOptions& options) {
  const ScratchFolder scratch;
  const std::string output = scratch.file("ranks.json");
  LaunchOptions job;
  job.ranks = options.ranks;
  job.command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                 "--worker",
                 "rank",
                 "--output",
                 output,
                 "--ranks",
                 std::to_string(options.ranks),
                 "--tokens",
                 std::to_string(options.tokens),
                 "--bucket-bytes",
                 std::to_string(options.bucket_bytes),
                 "--bucket-count",
                 std::to_string(options.bucket_count),
                 "--step-rounds",
                 std::to_string(options.rounds),
                 "--steps",
                 std::to_string(options.steps)};
  const int code = launch(job);
  TRIREME_CHECK(code == 0, "the ranks ended with ", code);
  std::ifstream file(output);
  const Json all = Json::parse(file);
  std::map<std::string, std::vector<double>> times;
  std::map<std::string, double> bytes;
  for (const Json& each : all) {
    for (const double ms : each.at("ms")) {
      times[each.at("mode")].push_back(ms);
    }
    bytes[each.at("mode")] = each.at("memory_bytes");
  }
  Table table({"mode", "ms", "best", "this / ddp", "held by all ranks"});
  for (const GpuMode& mode : gpu_modes()) {
    const std::vector<double>& ms = times.at(mode.name);
    table.add({mode.name,
               number_text(median(ms)),
               number_text(*std::ranges::min_element(ms)),
               number_text(median(ms) / median(times.at("ddp"))),
               bytes_text(static_cast<long long>(bytes.at(mode.name)))});
  }
  std::printf("GPT-2 124M, bfloat16, %s with %lld tokens each, medians of %d rounds in turns\n%s",
              detail::counted(options.ranks, "rank").c_str(),
              static_cast<long long>(options.tokens),
              options.rounds,
              table.text().c_str());
  std::fflush(stdout);
  return all;
}

}  // namespace trireme::bench
