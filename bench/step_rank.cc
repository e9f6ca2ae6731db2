#include "step_rank.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "number_text.h"
#include "traffic.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

// This process's proportional share of the memory it maps.
long long proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  long long kilobytes = 0;
  while (file >> word) {
    if (word == "Pss:") {
      file >> kilobytes;
      break;
    }
  }
  return kilobytes * 1024;
}

std::string settings_text(const EngineOptions& options) {
  return detail::concat("zero ",
                        options.zero,
                        ", units of ",
                        bytes_text(static_cast<long long>(options.unit_bytes)),
                        ", ",
                        options.bucket_count,
                        " buckets of ",
                        bytes_text(static_cast<long long>(options.bucket_bytes)));
}

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> kModes = {
      {"single", 0, Placement::kAutomatic, {"torch-single"}},
      {"ddp", 0, Placement::kAutomatic, {"torch-ddp", "deepspeed-0"}},
      {"zero1", 1, Placement::kAutomatic, {"torch-zero", "deepspeed-1"}},
      {"zero2", 2, Placement::kAutomatic, {"torch-fsdp2-no-reshard", "deepspeed-2"}},
      {"zero3", 3, Placement::kMapped, {"torch-fsdp2", "torch-fsdp2-prefetch", "deepspeed-3"}},
      {"zero3-copied",
       3,
       Placement::kCopied,
       {"torch-fsdp2", "torch-fsdp2-prefetch", "deepspeed-3"}},
  };
  return kModes;
}

void Tuning::add_to(CLI::App& app) {
  app.add_option("--unit-bytes", options.unit_bytes, "EngineOptions::unit_bytes");
  app.add_option("--bucket-bytes", options.bucket_bytes, "EngineOptions::bucket_bytes");
  app.add_option("--bucket-count", options.bucket_count, "EngineOptions::bucket_count");
  app.add_option("--compress", compress)->group("");
  app.add_option("--warm-up-steps", warm_up)->group("");
  app.add_option("--timed-steps", timed)->group("");
}

std::vector<std::string> Tuning::arguments() const {
  return {"--unit-bytes",
          std::to_string(options.unit_bytes),
          "--bucket-bytes",
          std::to_string(options.bucket_bytes),
          "--bucket-count",
          std::to_string(options.bucket_count),
          "--compress",
          compress,
          "--warm-up-steps",
          std::to_string(warm_up),
          "--timed-steps",
          std::to_string(timed)};
}

std::vector<std::string> step_rank_command(const std::string& mode,
                                           std::size_t setting,
                                           const Tuning& tuning,
                                           const std::string& output) {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "--worker",
                                    mode,
                                    "--setting",
                                    std::to_string(setting),
                                    "--output",
                                    output};
  const auto more = tuning.arguments();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int run_step_rank(const std::string& mode_name,
                  std::size_t setting_index,
                  const Tuning& tuning,
                  const std::string& output) {
  TRIREME_CHECK(setting_index < kStepSettings.size(), "there is no setting ", setting_index);
  const StepSetting& setting = kStepSettings[setting_index];
  const auto world = init();
  at::set_num_threads(1);
  torch::manual_seed(0);
  const Mode* mode = nullptr;
  for (const Mode& candidate : modes()) {
    mode = candidate.name == mode_name ? &candidate : mode;
  }
  TRIREME_CHECK(mode != nullptr, "there is no mode ", mode_name);
  models::Gpt model(setting.model);
  EngineOptions options = tuning.options;
  options.zero = mode->zero;
  options.placement = mode->placement;
  options.compress = tuning.compress == "none" ? nullptr : make_compressor(tuning.compress);
  Engine engine(model, AdamW({.lr = 3e-4}), options, world);
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(world->rank()));
  std::vector<double> times;
  Traffic before;
  for (int i = 0; i < tuning.warm_up + tuning.timed; ++i) {
    const auto text = torch::randint(0,
                                     setting.model.vocabulary,
                                     {setting.batch, setting.model.sequence + 1},
                                     generator,
                                     torch::kLong);
    if (i == tuning.warm_up) {
      before = traffic_of(*world);
    }
    const auto start = Clock::now();
    engine.backward(model->loss(text));
    engine.step();
    if (i >= tuning.warm_up) {
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  const Traffic after = traffic_of(*world);
  const MemoryReport report = engine.memory_report();
  std::vector<std::int64_t> sums = {
      proportional_bytes(), after.ledger - before.ledger, after.interfaces - before.interfaces};
  world->all_reduce(sums).wait();
  if (world->rank() == 0) {
    std::int64_t model_bytes = 0;
    std::int64_t held_bytes = 0;
    for (const MemoryUse& use : report.ranks) {
      model_bytes = std::max(model_bytes, use.model_bytes());
      held_bytes = std::max(held_bytes, use.total());
    }
    std::ofstream(output) << Json{
        {"ms", times},
        {"memory_bytes", model_bytes},
        {"held_bytes", held_bytes},
        {"formula_bytes", report.predicted_bytes},
        {"pss_bytes", sums[0] / world->size()},
        {"network_bytes", sums[1] / tuning.timed},
        {"interface_bytes", sums[2] / tuning.timed},
        {"encode_ms", 1e3 * engine.compression().seconds / (tuning.warm_up + tuning.timed)},
        {"system", world->description()},
        {"settings", settings_text(options)}};
  }
  return 0;
}

}  // namespace trireme::bench
