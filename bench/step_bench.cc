// trireme bench step: a training step of a GPT in every mode, beside PyTorch and DeepSpeed.
//
// Every system trains the same model on random tokens with AdamW, in turns, round after round, so
// that a slow minute of the machine hits all of them. Times are those of whole steps on rank 0
// (forward, backward, update) after a warm-up; the table shows medians over all rounds.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "step_settings.h"
#include "table.h"
#include "trireme/core/deadline.h"
#include "trireme/core/machine.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "trireme/parallel/engine.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

struct Mode {
  const char* name;
  int zero;
  Placement placement;
  std::vector<const char*> peers;  // as bench/peers/*_step.py call them
};

const std::vector<Mode>& modes() {
  static const std::vector<Mode> kModes = {
      {"single", 0, Placement::kAutomatic, {"torch-single"}},
      {"ddp", 0, Placement::kAutomatic, {"torch-ddp", "deepspeed-0"}},
      {"zero1", 1, Placement::kAutomatic, {"torch-zero", "deepspeed-1"}},
      {"zero2", 2, Placement::kAutomatic, {"torch-fsdp2-no-reshard", "deepspeed-2"}},
      {"zero3", 3, Placement::kMapped, {"torch-fsdp2", "deepspeed-3"}},
      {"zero3-copied", 3, Placement::kCopied, {"torch-fsdp2", "deepspeed-3"}},
  };
  return kModes;
}

// --- a rank

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

// What may be varied to see what it does.
struct Tuning {
  EngineOptions options;

  void add_to(CLI::App& app) {
    app.add_option("--unit-bytes", options.unit_bytes, "EngineOptions::unit_bytes");
    app.add_option("--bucket-bytes", options.bucket_bytes, "EngineOptions::bucket_bytes");
    app.add_option("--bucket-count", options.bucket_count, "EngineOptions::bucket_count");
  }
  std::vector<std::string> arguments() const {
    return {"--unit-bytes",
            std::to_string(options.unit_bytes),
            "--bucket-bytes",
            std::to_string(options.bucket_bytes),
            "--bucket-count",
            std::to_string(options.bucket_count)};
  }
};

int run_worker(const std::string& mode_name,
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
  Engine engine(model, AdamW({.lr = 3e-4}), options, world);
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(world->rank()));
  std::vector<double> times;
  for (int i = 0; i < kWarmUpSteps + kTimedSteps; ++i) {
    const auto text = torch::randint(0,
                                     setting.model.vocabulary,
                                     {setting.batch, setting.model.sequence + 1},
                                     generator,
                                     torch::kLong);
    const auto start = Clock::now();
    engine.backward(model->loss(text));
    engine.step();
    if (i >= kWarmUpSteps) {
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  const MemoryReport report = engine.memory_report();
  std::vector<std::int64_t> proportional = {proportional_bytes()};
  world->all_reduce(proportional).wait();
  if (world->rank() == 0) {
    std::int64_t model_bytes = 0;
    for (const MemoryUse& use : report.ranks) {
      model_bytes = std::max(model_bytes, use.model_bytes());
    }
    std::ofstream(output) << Json{{"ms", times},
                                  {"memory_bytes", model_bytes},
                                  {"formula_bytes", report.predicted_bytes},
                                  {"pss_bytes", proportional[0] / world->size()}};
  }
  return 0;
}

// --- the conductor

struct Measured {
  std::vector<double> ms;
  Json last;  // its memory
};

struct StepOptions {
  int ranks = 2;
  int rounds = 3;
  bool peers = false;
  std::string json_path;
  std::string only;
};

void collect(const std::string& path, Measured* measured) {
  std::ifstream file(path);
  measured->last = Json::parse(file);
  const auto more = measured->last.at("ms").get<std::vector<double>>();
  measured->ms.insert(measured->ms.end(), more.begin(), more.end());
}

std::string megabytes(const Json& bytes) {
  return bytes.is_number() ? std::to_string(bytes.get<long long>() / 1'000'000) : "-";
}

int run_conductor(const StepOptions& options, const Tuning& tuning) {
  std::ofstream json_file;
  if (!options.json_path.empty()) {
    json_file.open(options.json_path);
    TRIREME_CHECK(json_file, "the file \"", options.json_path, "\" cannot be written");
  }
  const ScratchFolder scratch;
  std::map<std::pair<std::size_t, std::string>, Measured> measured;
  std::map<std::string, std::string> missing;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
      std::fprintf(
          stderr, "round %d of %d, %s:", round + 1, options.rounds, kStepSettings[setting].name);
      std::vector<std::string> done;
      for (const Mode& mode : modes()) {
        if (!options.only.empty() && options.only != mode.name) {
          continue;
        }
        std::fprintf(stderr, " %s", mode.name);
        const std::string output = scratch.file("step.json");
        LaunchOptions job;
        job.ranks = mode.name == std::string("single") ? 1 : options.ranks;
        job.threads = 1;
        job.command = {"/proc/self/exe",
                       "--worker",
                       mode.name,
                       "--setting",
                       std::to_string(setting),
                       "--output",
                       output};
        for (const std::string& argument : tuning.arguments()) {
          job.command.push_back(argument);
        }
        if (const int code = launch(job); code != 0) {
          return code;
        }
        collect(output, &measured[{setting, mode.name}]);
        for (const char* peer : mode.peers) {
          const bool before = std::find(done.begin(), done.end(), peer) != done.end();
          if (!options.peers || before || missing.count(peer) > 0) {
            continue;
          }
          done.emplace_back(peer);
          std::fprintf(stderr, " %s", peer);
          const Peer command =
              step_peer(peer, options.ranks, static_cast<int>(setting), TORCH_VERSION, output);
          if (!command.missing.empty()) {
            missing[peer] = command.missing;
          } else if (const int code = run_command(command.command); code != 0) {
            missing[peer] = "its program failed with exit code " + std::to_string(code);
          } else {
            collect(output, &measured[{setting, peer}]);
          }
        }
      }
      std::fprintf(stderr, "\n");
    }
  }

  std::printf(
      "Trireme %s, LibTorch %s, %d ranks x 1 thread on %zu processors, float32, AdamW, median ms "
      "of a step (%d rounds of %d)\n",
      TRIREME_VERSION,
      TORCH_VERSION,
      options.ranks,
      allowed_cpus().size(),
      options.rounds,
      kTimedSteps);
  Json json = Json::array();
  for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
    const models::GptOptions& gpt = kStepSettings[setting].model;
    std::printf(
        "\n%s: GPT of %lld layers, width %lld, vocabulary %lld, sequence %lld, micro-batch %lld\n",
        kStepSettings[setting].name,
        static_cast<long long>(gpt.layers),
        static_cast<long long>(gpt.width),
        static_cast<long long>(gpt.vocabulary),
        static_cast<long long>(gpt.sequence),
        static_cast<long long>(kStepSettings[setting].batch));
    Table table({"mode",
                 "ms",
                 "(best)",
                 "model MB",
                 "formula MB",
                 "PSS MB",
                 "peer",
                 "ms",
                 "(best)",
                 "model MB",
                 "PSS MB",
                 "ours / peer"});
    for (const Mode& mode : modes()) {
      const auto ours = measured.find({setting, mode.name});
      if (ours == measured.end()) {
        continue;
      }
      const Measured& own = ours->second;
      Json entry = {{"setting", kStepSettings[setting].name},
                    {"mode", mode.name},
                    {"ranks", mode.name == std::string("single") ? 1 : options.ranks},
                    {"ms", median(own.ms)},
                    {"best_ms", best(own.ms)},
                    {"memory_bytes", own.last.at("memory_bytes")},
                    {"formula_bytes", own.last.at("formula_bytes")},
                    {"pss_bytes", own.last.at("pss_bytes")},
                    {"peers", Json::object()}};
      std::vector<std::string> row = {mode.name,
                                      number_text(median(own.ms)),
                                      "(" + number_text(best(own.ms)) + ")",
                                      megabytes(own.last.at("memory_bytes")),
                                      megabytes(own.last.at("formula_bytes")),
                                      megabytes(own.last.at("pss_bytes"))};
      bool first = true;
      for (const char* peer : mode.peers) {
        const auto theirs = measured.find({setting, peer});
        if (!options.peers) {
          break;
        }
        if (!first) {
          row = {"", "", "", "", "", ""};
        }
        first = false;
        if (theirs == measured.end()) {
          row.insert(row.end(), {peer, "-", "", "", "", ""});
          entry["peers"][peer] = {
              {"ms", nullptr}, {"memory_bytes", nullptr}, {"missing", missing[peer]}};
        } else {
          const Measured& other = theirs->second;
          row.insert(row.end(),
                     {peer,
                      number_text(median(other.ms)),
                      "(" + number_text(best(other.ms)) + ")",
                      megabytes(other.last.at("memory_bytes")),
                      megabytes(other.last.at("pss_bytes")),
                      number_text(median(own.ms) / median(other.ms))});
          entry["peers"][peer] = {{"ms", median(other.ms)},
                                  {"best_ms", best(other.ms)},
                                  {"memory_bytes", other.last.at("memory_bytes")},
                                  {"pss_bytes", other.last.at("pss_bytes")}};
        }
        table.add(row);
      }
      if (first) {
        row.insert(row.end(), {"", "", "", "", "", ""});
        table.add(row);
      }
      json.push_back(entry);
    }
    std::fputs(table.text().c_str(), stdout);
  }
  for (const auto& [peer, why] : missing) {
    std::printf("%s was not measured: %s\n", peer.c_str(), why.c_str());
  }
  std::printf(
      "model: parameters, gradients and optimizer states of one rank (the peers': all tensors "
      "alive between steps)\n");
  if (json_file.is_open()) {
    json_file << json.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app("A training step of a GPT: one process, DDP, ZeRO-1, 2, 3 mapped and copied",
               "trireme bench step");
  bench::StepOptions options;
  bench::Tuning tuning;
  tuning.add_to(app);
  std::string worker;
  std::string output;
  std::size_t setting = 0;
  app.add_option("-n,--ranks", options.ranks, "How many ranks (default: 2)")
      ->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "How often the systems take turns (default: 3)")
      ->check(CLI::Range(1, 100));
  app.add_flag("--peers", options.peers, "Beside PyTorch and DeepSpeed, in turns in the same run");
  std::vector<std::string> names;
  for (const bench::Mode& mode : bench::modes()) {
    names.emplace_back(mode.name);
  }
  app.add_option("--only", options.only, "One mode only")->check(CLI::IsMember(names));
  app.add_option("--json", options.json_path, "Write the table as JSON too")->type_name("FILE");
  app.add_option("--worker", worker)->group("");
  app.add_option("--setting", setting)->group("");
  app.add_option("--output", output)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    return worker.empty() ? bench::run_conductor(options, tuning)
                          : bench::run_worker(worker, setting, tuning, output);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme bench step: %s\n", error.what());
    return 1;
  }
}
