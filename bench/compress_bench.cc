// trireme bench compress: steps of a GPT with DDP on two machines and a slow link, with every
// compressor, beside PyTorch's hooks and beside what the link allows.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <CLI/CLI.hpp>

#include <torch/version.h>

#include "arguments.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "step_measured.h"
#include "step_rank.h"
#include "test_bed.h"
#include "traffic.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

struct CompressOptions {
  int rounds = 1;
  int steps = 4;
  int megabits = 100;
  std::string only{};
  bool peers = false;
  std::string json_path{};
  std::string command_line{};
};

// Ours, and what PyTorch has of as many bytes.
struct Row {
  const char* name;
  const char* peer;
};
constexpr Row kRows[] = {{"none", "torch-ddp"},
                         {"bf16", "torch-ddp-fp16"},
                         {"fp16", "torch-ddp-fp16"},
                         {"int8", "torch-ddp-fp16"},
                         {"sign", "torch-ddp-powersgd"},
                         {"topk:0.01", "torch-ddp-powersgd"},
                         {"randk:0.01", "torch-ddp-powersgd"},
                         {"powersgd:4", "torch-ddp-powersgd"}};

class CompressBench {
 public:
  CompressBench(const CompressOptions& options, const Tuning& tuning)
      : options_(options), tuning_(tuning), bed_(2) {
    bed_.rate(std::to_string(options.megabits) + "mbit");
    for (const Row& row : kRows) {
      if (!options.only.empty() && options.only != row.name && row.name != std::string("none")) {
        continue;  // the ceiling is that of none
      }
      rows_.push_back(row);
      systems_.emplace_back(row.name);
      if (options.peers && std::ranges::find(systems_, row.peer) == systems_.end()) {
        systems_.emplace_back(row.peer);
      }
    }
  }

  int measure() {
    for (int round = 0; round < options_.rounds; ++round) {
      std::fprintf(stderr, "round %d of %d: compute", round + 1, options_.rounds);
      if (const int code = measure_compute(); code != 0) {
        return code;
      }
      for (const std::string& system : turn_order(systems_, round, options_.rounds)) {
        std::fprintf(stderr, " %s", system.c_str());
        const int code = system.starts_with("torch-") ? measure_peer(system) : measure_own(system);
        if (code != 0) {
          return code;
        }
      }
      std::fprintf(stderr, "\n");
    }
    return 0;
  }

  void report(JsonFile& file) {
    std::printf(
        "Trireme %s, LibTorch %s (%s), 25.8 M parameters, DDP, 2 machines (network namespaces of "
        "one host) x 1 rank of 1 thread, %d Mbit/s\n%s%s",
        TRIREME_VERSION,
        TORCH_VERSION,
        measured_.at("none").last.at("system").get<std::string>().c_str(),
        options_.megabits,
        host_text(options_.command_line).c_str(),
        same_terms_text().c_str());
    Table table({"compressor",
                 "MB sent",
                 "of none",
                 "encoding ms",
                 "ms",
                 "link allows",
                 "reached",
                 "peer",
                 "ms",
                 "ours / peer"});
    Json json = Json::array();
    for (const Row& row : rows_) {
      add_row(row, table, json);
    }
    std::fputs(table.text().c_str(), stdout);
    for (const auto& [peer, why] : missing_) {
      std::printf("%s was not measured: %s\n", peer.c_str(), why.c_str());
    }
    std::printf(
        "Median of %d steps. MB sent: by a rank in a step, as the ledger has it. link allows: %s "
        "ms "
        "of one rank alone,\nand the time in which the link carries the bytes and the headers of "
        "their frames, one after the other; "
        "reached: that / ms, above 1 where they overlap.\n",
        options_.rounds * options_.steps,
        number_text(median(compute_.ms)).c_str());
    file.write(json.dump(1));
  }

 private:
  Tuning tuning(const std::string& compress) const {
    Tuning tuning = tuning_;
    tuning.compress = compress;
    tuning.warm_up = 2;
    tuning.timed = options_.steps;
    return tuning;
  }

  int measure_compute() {
    LaunchOptions job;
    job.ranks = 1;
    job.threads = 1;
    job.command = step_rank_command("single", 0, tuning("none"), output());
    const int code = launch(job);
    if (code == 0) {
      compute_.collect(output());
    }
    return code;
  }

  int measure_own(const std::string& name) {
    LaunchOptions job;
    job.ranks = 1;
    job.command = step_rank_command("ddp", 0, tuning(name), output());
    const int code = launch_on(bed_, job);
    if (code == 0) {
      measured_[name].collect(output());
    }
    return code;
  }

  int measure_peer(const std::string& name) {
    if (missing_.count(name) > 0) {
      return 0;
    }
    const std::string meeting = scratch_.file("meeting-" + std::to_string(meetings_++));
    const Peer peer = step_peer_on(bed_, name, 1, 0, meeting, output());
    if (!peer.missing.empty()) {
      missing_[name] = peer.missing;
      return 0;
    }
    const int code = run_together(peer.on_machines);
    if (code > 128) {
      return code;  // a signal, to this process most likely
    }
    if (code != 0) {
      missing_[name] = "its program failed with exit code " + std::to_string(code);
    } else {
      measured_[name].collect(output());
    }
    return 0;
  }

  std::string output() const { return scratch_.file("step.json"); }
  // Of one of the two ranks.
  static double sent_by(const Measured& measured) {
    return measured.last.at("network_bytes").get<double>() / 2;
  }

  void add_row(const Row& row, Table& table, Json& json) {
    const Measured& own = measured_.at(row.name);
    const double bytes = sent_by(own);
    const double allowed = median(compute_.ms) + link_ms(bytes, options_.megabits);
    const double encoding = own.last.at("encode_ms");
    Json entry = {{"compressor", row.name},
                  {"sent_bytes", bytes},
                  {"interface_bytes", own.last.at("interface_bytes").get<double>() / 2},
                  {"encode_ms", encoding},
                  {"ms", median(own.ms)},
                  {"link_allows_ms", allowed},
                  {"peers", Json::object()}};
    std::vector<std::string> cells = {row.name,
                                      number_text(bytes / 1e6),
                                      number_text(bytes / sent_by(measured_.at("none"))),
                                      number_text(encoding),
                                      number_text(median(own.ms)),
                                      number_text(allowed),
                                      number_text(allowed / median(own.ms))};
    if (const auto peer = measured_.find(row.peer); peer != measured_.end()) {
      const double theirs = median(peer->second.ms);
      cells.insert(cells.end(),
                   {row.peer, number_text(theirs), number_text(median(own.ms) / theirs)});
      entry["peers"][row.peer] = peer->second.json();
    } else {
      cells.insert(cells.end(), {"", "", ""});
    }
    table.add(cells);
    json.push_back(entry);
  }

  const CompressOptions& options_;
  const Tuning& tuning_;
  TestBed bed_;
  ScratchFolder scratch_;
  std::vector<Row> rows_;
  std::vector<std::string> systems_;
  std::map<std::string, Measured> measured_;
  Measured compute_;
  std::map<std::string, std::string> missing_;
  int meetings_ = 0;
};

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app(
      "Measure steps with compressed gradients on two machines and a slow link; needs root",
      "trireme bench compress");
  bench::CompressOptions options;
  bench::Tuning tuning;
  tuning.add_to(app);
  std::string worker;
  std::string output;
  std::size_t setting = 0;
  app.add_option("--rounds", options.rounds, "Rounds in which the systems take turns (default: 1)")
      ->check(CLI::Range(1, 100));
  app.add_option("--steps", options.steps, "Steps that are timed in a round (default: 4)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--megabits", options.megabits, "What the link carries in a second (default: 100)")
      ->check(CLI::Range(1, 100'000));
  std::vector<std::string> names;
  for (const bench::Row& row : bench::kRows) {
    names.emplace_back(row.name);
  }
  app.add_option("--only", options.only, "Measure none and one compressor only")
      ->check(CLI::IsMember(names));
  app.add_flag("--peers", options.peers, "Also measure PyTorch's hooks, in turns in the same run");
  app.add_option("--json", options.json_path, "Also write the table as JSON")->type_name("FILE");
  app.add_option("--worker", worker)->group("");
  app.add_option("--setting", setting)->group("");
  app.add_option("--output", output)->group("");
  options.command_line = bench::command_line(argc, argv);
  if (const auto code = bench::take_arguments(app, argc, argv)) {
    return *code;
  }
  return bench::exit_code_of([&] {
    if (!worker.empty()) {
      return bench::run_step_rank(worker, setting, tuning, output);
    }
    bench::JsonFile file(options.json_path);
    bench::set_same_terms();
    setenv("TRIREME_PEER_STEPS", ("2 " + std::to_string(options.steps)).c_str(), 1);
    bench::CompressBench bench(options, tuning);
    if (const int code = bench.measure(); code != 0) {
      return code;
    }
    bench.report(file);
    return 0;
  });
}
