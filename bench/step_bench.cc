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

#include <torch/version.h>

#include "number_text.h"
#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "step_machines.h"
#include "step_measured.h"
#include "step_rank.h"
#include "step_settings.h"
#include "trireme/core/deadline.h"
#include "trireme/core/machine.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "trireme/parallel/engine.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

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
        job.command = step_rank_command(mode.name, setting, tuning, output);
        if (const int code = launch(job); code != 0) {
          return code;
        }
        measured[{setting, mode.name}].collect(output);
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
            measured[{setting, peer}].collect(output);
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
  app.add_option("-n,--ranks",
                 options.ranks,
                 "How many ranks on each machine (default: 2; with --machines 1)")
      ->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "How often the systems take turns (default: 3)")
      ->check(CLI::Range(1, 100));
  app.add_flag("--peers", options.peers, "Beside PyTorch and DeepSpeed, in turns in the same run");
  std::vector<std::string> names;
  for (const bench::Mode& mode : bench::modes()) {
    names.emplace_back(mode.name);
  }
  app.add_option("--only", options.only, "One mode only")->check(CLI::IsMember(names));
  app.add_option("--machines",
                 options.machines,
                 "A test bed of so many machines: network namespaces on this host; needs root")
      ->check(CLI::Range(2, 200));
  app.add_flag("--traffic",
               options.traffic,
               "The bytes between two machines of two ranks each in a step: in groups, and flat");
  app.add_option("--json", options.json_path, "Write the table as JSON too")->type_name("FILE");
  app.add_option("--worker", worker)->group("");
  app.add_option("--setting", setting)->group("");
  app.add_option("--output", output)->group("");
  for (int i = 0; i < argc; ++i) {
    options.command_line += (i > 0 ? " " : "") + std::string(argv[i]);
  }
  CLI11_PARSE(app, argc, argv);
  if (options.ranks == 0) {
    options.ranks = options.machines > 0 ? 1 : 2;
  }
  try {
    if (!worker.empty()) {
      return bench::run_step_rank(worker, setting, tuning, output);
    }
    return options.traffic        ? bench::run_step_traffic(options, tuning)
           : options.machines > 0 ? bench::run_step_machines(options, tuning)
                                  : bench::run_conductor(options, tuning);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme bench step: %s\n", error.what());
    return 1;
  }
}
