#include "step_modes.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include <torch/version.h>

#include "arguments.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "step_settings.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "turn_order.h"

// Every system trains the same model on random tokens with AdamW, in turns (turn_order.h). Times
// are those of whole steps on rank 0 (forward, backward, update) after a warm-up; the table shows
// medians over all rounds.

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

std::string whole_megabytes(const Json& bytes) {
  return bytes.is_number() ? std::to_string(bytes.get<long long>() / 1'000'000) : "-";
}

// One of ours or one of theirs.
struct System {
  std::string name;
  const Mode* mode;  // nullptr: a peer
};

class StepModes {
 public:
  StepModes(const StepOptions& options, const Tuning& tuning) : options_(options), tuning_(tuning) {
    for (const Mode& mode : modes()) {
      if (!options.only.empty() && options.only != mode.name) {
        continue;
      }
      systems_.push_back({mode.name, &mode});
      for (const char* peer : mode.peers) {
        const bool is_there = std::any_of(systems_.begin(),
                                          systems_.end(),
                                          [&](const System& other) { return other.name == peer; });
        if (options.peers && !is_there) {
          systems_.push_back({peer, nullptr});
        }
      }
    }
  }

  // 0, or the exit code of the job that failed.
  int measure() {
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
        std::fprintf(
            stderr, "round %d of %d, %s:", round + 1, options_.rounds, kStepSettings[setting].name);
        for (const System& system : turn_order(systems_, round, options_.rounds)) {
          std::fprintf(stderr, " %s", system.name.c_str());
          if (system.mode == nullptr) {
            measure_peer(system.name, setting);
          } else if (const int code = measure_mode(*system.mode, setting); code != 0) {
            return code;
          }
        }
        std::fprintf(stderr, "\n");
      }
    }
    return 0;
  }

  // Prints the tables and returns them.
  Json report() {
    std::printf(
        "Trireme %s, LibTorch %s, %s, float32, AdamW, median ms of a step (%s of "
        "%d)\n%s%s",
        TRIREME_VERSION,
        TORCH_VERSION,
        detail::counted(options_.ranks, "rank").c_str(),
        detail::counted(options_.rounds, "round").c_str(),
        kTimedSteps,
        same_terms_text().c_str(),
        host_text(options_.command_line).c_str());
    Json json = Json::array();
    for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
      report_setting(setting, json);
    }
    for (const auto& [peer, why] : missing_) {
      std::printf("%s was not measured: %s\n", peer.c_str(), why.c_str());
    }
    std::printf(
        "model: parameters, gradients and optimizer states of one rank. held: these, buckets and "
        "parameters put together for use; the peers': all tensors alive between steps.\n");
    return json;
  }

 private:
  std::string output() const { return scratch_.file("step.json"); }
  int ranks_of(const Mode& mode) const {
    return mode.name == std::string("single") ? 1 : options_.ranks;
  }

  int measure_mode(const Mode& mode, std::size_t setting) {
    LaunchOptions job;
    job.ranks = ranks_of(mode);
    job.threads = 1;
    job.command = step_rank_command(mode.name, setting, tuning_, output());
    const int code = launch(job);
    if (code == 0) {
      measured_[{setting, mode.name}].collect(output());
    }
    return code;
  }

  void measure_peer(const std::string& name, std::size_t setting) {
    if (missing_.count(name) > 0) {
      return;
    }
    const Peer peer =
        step_peer(name, options_.ranks, static_cast<int>(setting), TORCH_VERSION, output());
    if (!peer.missing.empty()) {
      missing_[name] = peer.missing;
    } else if (const int code = run_command(peer.command); code != 0) {
      missing_[name] = "its program failed with exit code " + std::to_string(code);
    } else {
      measured_[{setting, name}].collect(output());
    }
  }

  void report_setting(std::size_t setting, Json& json) {
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
                 "held MB",
                 "PSS MB",
                 "peer",
                 "ms",
                 "(best)",
                 "held MB",
                 "PSS MB",
                 "ours / peer"});
    for (const Mode& mode : modes()) {
      if (measured_.count({setting, mode.name}) > 0) {
        json.push_back(add_mode(mode, setting, table));
      }
    }
    std::fputs(table.text().c_str(), stdout);
    for (const System& system : systems_) {
      if (const auto found = measured_.find({setting, system.name}); found != measured_.end()) {
        std::printf("%s: %s; %s\n",
                    system.name.c_str(),
                    found->second.last.at("system").get<std::string>().c_str(),
                    found->second.last.at("settings").get<std::string>().c_str());
      }
    }
  }

  // One row for each peer, or one where there is none.
  Json add_mode(const Mode& mode, std::size_t setting, Table& table) {
    const Measured& own = measured_.at({setting, mode.name});
    Json entry = own.json();
    entry.update({{"setting", kStepSettings[setting].name},
                  {"mode", mode.name},
                  {"ranks", ranks_of(mode)},
                  {"memory_bytes", own.last.at("memory_bytes")},
                  {"formula_bytes", own.last.at("formula_bytes")},
                  {"peers", Json::object()}});
    std::vector<std::string> row = {mode.name,
                                    number_text(median(own.ms)),
                                    "(" + number_text(best(own.ms)) + ")",
                                    whole_megabytes(own.last.at("memory_bytes")),
                                    whole_megabytes(own.last.at("formula_bytes")),
                                    whole_megabytes(own.last.at("held_bytes")),
                                    whole_megabytes(own.last.at("pss_bytes"))};
    const std::size_t own_cells = row.size();
    if (!options_.peers) {
      row.insert(row.end(), {"", "", "", "", "", ""});
      table.add(row);
      return entry;
    }
    for (const char* peer : mode.peers) {
      const auto theirs = measured_.find({setting, peer});
      if (theirs == measured_.end()) {
        row.insert(row.end(), {peer, "-", "", "", "", ""});
        entry["peers"][peer] = {
            {"ms", nullptr}, {"held_bytes", nullptr}, {"missing", missing_[peer]}};
      } else {
        const Measured& other = theirs->second;
        row.insert(row.end(),
                   {peer,
                    number_text(median(other.ms)),
                    "(" + number_text(best(other.ms)) + ")",
                    whole_megabytes(other.last.at("held_bytes")),
                    whole_megabytes(other.last.at("pss_bytes")),
                    number_text(median(own.ms) / median(other.ms))});
        entry["peers"][peer] = other.json();
      }
      table.add(row);
      row.assign(own_cells, "");
    }
    return entry;
  }

  const StepOptions& options_;
  const Tuning& tuning_;
  ScratchFolder scratch_;
  std::vector<System> systems_;
  std::map<std::pair<std::size_t, std::string>, Measured> measured_;  // by setting and system
  std::map<std::string, std::string> missing_;
};

}  // namespace

int run_step_modes(const StepOptions& options, const Tuning& tuning) {
  JsonFile file(options.json_path);
  StepModes bench(options, tuning);
  if (const int code = bench.measure(); code != 0) {
    return code;
  }
  const Json json = bench.report();
  file.write(json.dump(1));
  return 0;
}

}  // namespace trireme::bench
