#include "step_machines.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include <torch/version.h>

#include "host_text.h"
#include "number_text.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "step_settings.h"
#include "test_bed.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;
using Results = std::map<std::pair<std::size_t, std::string>, Measured>;  // by setting and system

constexpr const char* kSharded = "zero3-copied";  // what is asked for where nothing is

// The modes that several machines can have.
std::vector<const Mode*> modes_for(const StepOptions& options) {
  TRIREME_CHECK(options.only != "single" && options.only != "zero3",
                "--only ",
                options.only,
                ": expected a mode for several machines (ddp, zero1, zero2, zero3-copied)");
  std::vector<const Mode*> chosen;
  for (const Mode& mode : modes()) {
    if (mode.name == (options.only.empty() ? kSharded : options.only)) {
      chosen.push_back(&mode);
    }
  }
  return chosen;
}

// PyTorch's, which comes first; DeepSpeed is measured on one machine only.
const char* peer_of(const Mode& mode) {
  return mode.peers.front();
}

void write_json(const StepOptions& options, const Json& json) {
  if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    TRIREME_CHECK(
        file << json.dump(1) << "\n", "the file \"", options.json_path, "\" cannot be written");
  }
}

std::string megabytes(double bytes) {
  return number_text(bytes / 1e6);
}

void print_head(const StepOptions& options, int ranks, const std::string& system) {
  std::printf(
      "Trireme %s with LibTorch %s (%s); %d machines (network namespaces of one host) x %s of 1 "
      "thread\n%s",
      TRIREME_VERSION,
      TORCH_VERSION,
      system.c_str(),
      std::max(options.machines, 2),
      detail::counted(ranks, "rank").c_str(),
      host_text(options.command_line).c_str());
}

class StepMachines {
 public:
  StepMachines(const StepOptions& options, const Tuning& tuning)
      : options_(options), tuning_(tuning), bed_(options.machines) {}

  int measure() {
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
        std::fprintf(
            stderr, "round %d of %d, %s:", round + 1, options_.rounds, kStepSettings[setting].name);
        if (const int code = measure_round(round, setting); code != 0) {
          return code;
        }
        std::fprintf(stderr, "\n");
      }
    }
    return 0;
  }

  void report() {
    const std::string first = modes_for(options_).front()->name;
    print_head(options_, options_.ranks, results_.at({0, first}).last.at("system"));
    Table table({"setting", "mode", "ms", "(best)", "MB sent", "peer", "ms", "(best)", "ratio"});
    Json json = Json::array();
    for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
      for (const Mode* mode : modes_for(options_)) {
        add_row(*mode, setting, table, json);
      }
    }
    std::fputs(table.text().c_str(), stdout);
    for (const auto& [key, measured] : results_) {
      std::printf("%s, %s: %s; %s\n",
                  key.second.c_str(),
                  kStepSettings[key.first].name,
                  measured.last.at("system").get<std::string>().c_str(),
                  measured.last.at("settings").get<std::string>().c_str());
    }
    std::fputs(same_terms_text().c_str(), stdout);
    for (const auto& [peer, why] : missing_) {
      std::printf("%s was not measured: %s\n", peer.c_str(), why.c_str());
    }
    std::printf(
        "Median of whole steps on rank 0 over %s in turns; the peer is PyTorch over Gloo on "
        "the same interface.\nratio: ours / theirs. MB sent: by all ranks to other machines in a "
        "step.\n",
        detail::counted(options_.rounds, "round").c_str());
    write_json(options_, json);
  }

 private:
  int measure_round(int round, std::size_t setting) {
    for (const Mode* mode : modes_for(options_)) {
      std::vector<std::string> systems = {mode->name};
      if (options_.peers) {
        systems.emplace_back(peer_of(*mode));
      }
      for (const std::string& system : turn_order(systems, round, options_.rounds)) {
        std::fprintf(stderr, " %s", system.c_str());
        const int code =
            system == mode->name ? measure_ours(*mode, setting) : measure_peer(system, setting);
        if (code != 0) {
          return code;
        }
      }
    }
    return 0;
  }

  int measure_ours(const Mode& mode, std::size_t setting) {
    LaunchOptions job;
    job.ranks = options_.ranks;
    job.command = step_rank_command(mode.name, setting, tuning_, output());
    const int code = launch_on(bed_, job);
    if (code == 0) {
      results_[{setting, mode.name}].collect(output());
    }
    return code;
  }

  int measure_peer(const std::string& peer, std::size_t setting) {
    if (missing_.count(peer) > 0) {
      return 0;
    }
    const std::string meeting = scratch_.file("meeting-" + std::to_string(meetings_++));
    const Peer command =
        step_peer_on(bed_, peer, options_.ranks, static_cast<int>(setting), meeting, output());
    if (!command.missing.empty()) {
      missing_[peer] = command.missing;
      return 0;
    }
    const int code = run_together(command.on_machines);
    if (code > 128) {
      return code;  // a signal, to this process most likely
    }
    if (code != 0) {
      missing_[peer] = "its program failed with exit code " + std::to_string(code);
    } else {
      results_[{setting, peer}].collect(output());
    }
    return 0;
  }

  std::string output() const { return scratch_.file("step.json"); }

  void add_row(const Mode& mode, std::size_t setting, Table& table, Json& json) {
    const Measured& own = results_.at({setting, mode.name});
    Json entry = {{"setting", kStepSettings[setting].name},
                  {"mode", mode.name},
                  {"machines", options_.machines},
                  {"ranks", options_.machines * options_.ranks},
                  {"ms", median(own.ms)},
                  {"best_ms", best(own.ms)},
                  {"network_bytes", own.last.at("network_bytes")},
                  {"interface_bytes", own.last.at("interface_bytes")},
                  {"peers", Json::object()}};
    std::vector<std::string> row = {kStepSettings[setting].name,
                                    mode.name,
                                    number_text(median(own.ms)),
                                    "(" + number_text(best(own.ms)) + ")",
                                    megabytes(own.last.at("network_bytes"))};
    const std::string peer = peer_of(mode);
    const auto theirs = results_.find({setting, peer});
    if (theirs != results_.end()) {
      const double other = median(theirs->second.ms);
      row.insert(row.end(),
                 {peer,
                  number_text(other),
                  "(" + number_text(best(theirs->second.ms)) + ")",
                  number_text(median(own.ms) / other)});
      entry["peers"][peer] = theirs->second.json();
    }
    table.add(row);
    json.push_back(entry);
  }

  const StepOptions& options_;
  const Tuning& tuning_;
  TestBed bed_;
  ScratchFolder scratch_;
  Results results_;
  std::map<std::string, std::string> missing_;
  int meetings_ = 0;
};

// Four ranks; which part of what they send goes from one half of them to the other.
struct Arrangement {
  const char* name;
  int machines;
  int ranks;  // of each machine
  int sum_group;
  const char* algorithm;
  double share;
};
constexpr Arrangement kArrangements[] = {
    // Every rank sends as much to each of the others, of which two are in the other half.
    {"flat 4", 4, 1, 1, "direct", 2.0 / 3},
    {"2 x 2, flat sums", 2, 2, 1, "direct", 1},
    {"2 x 2, groups of 2", 2, 2, 2, "", 1},
};

}  // namespace

int run_step_machines(const StepOptions& options, const Tuning& tuning) {
  modes_for(options);  // before anything is made
  StepMachines bench(options, tuning);
  if (const int code = bench.measure(); code != 0) {
    return code;
  }
  bench.report();
  return 0;
}

int run_step_traffic(const StepOptions& options, const Tuning& tuning) {
  modes_for(options);  // before anything is made
  const ScratchFolder scratch;
  const std::string output = scratch.file("step.json");
  Table table({"setting", "mode", "ranks", "MB, ledger", "of flat", "MB, interfaces", "of flat"});
  Json json = Json::array();
  std::map<std::string, std::pair<double, double>> flat;  // by setting and mode
  std::string system;
  for (const Arrangement& arrangement : kArrangements) {
    const TestBed bed(arrangement.machines);
    for (std::size_t setting = 0; setting < kStepSettings.size(); ++setting) {
      for (const Mode* mode : modes_for(options)) {
        std::fprintf(
            stderr, "%s, %s, %s\n", arrangement.name, kStepSettings[setting].name, mode->name);
        LaunchOptions job;
        job.ranks = arrangement.ranks;
        job.sum_group = arrangement.sum_group;
        job.algorithm = arrangement.algorithm;
        job.command = step_rank_command(mode->name, setting, tuning, output);
        if (const int code = launch_on(bed, job); code != 0) {
          return code;
        }
        Measured measured;
        measured.collect(output);
        system = measured.last.at("system");
        const double ledger = arrangement.share * measured.last.at("network_bytes").get<double>();
        const double wire = arrangement.share * measured.last.at("interface_bytes").get<double>();
        const auto base =
            flat.try_emplace(std::string(kStepSettings[setting].name) + mode->name, ledger, wire)
                .first->second;
        table.add({kStepSettings[setting].name,
                   mode->name,
                   arrangement.name,
                   megabytes(ledger),
                   number_text(ledger / base.first),
                   megabytes(wire),
                   number_text(wire / base.second)});
        json.push_back({{"setting", kStepSettings[setting].name},
                        {"mode", mode->name},
                        {"ranks", arrangement.name},
                        {"network_bytes", ledger},
                        {"interface_bytes", wire},
                        {"network_of_flat", ledger / base.first},
                        {"interface_of_flat", wire / base.second}});
      }
    }
  }
  print_head(options, 2, system);
  std::fputs(table.text().c_str(), stdout);
  std::printf(
      "Sent from machine to machine in a step, by all ranks together. flat: four ranks that share "
      "nothing, each on\na machine of its own; two thirds of what they send would leave a machine "
      "of two.\n");
  write_json(options, json);
  return 0;
}

}  // namespace trireme::bench
