// trireme bench checkpoint: saving and loading the state of a training, beside PyTorch.
//
// Every system saves and loads the same tensors on the same disk, in turns (turn_order.h). A save
// ends when the bytes are on disk. The table shows medians over all rounds; a ratio above 1 says
// that Trireme took less time.

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "checkpoint_ranks.h"
#include "checkpoint_state.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "page_cache.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

// What a system has on disk at one time, of what it saves.
constexpr std::size_t kCopiesOnDisk = 3;
constexpr const char* kNoDisk =
    "the folder is in memory, not on a disk, so these times say nothing about checkpoints on a "
    "disk; "
    "choose a place on one with --folder";

struct CheckpointBenchOptions {
  int ranks = 2;
  int rounds = 5;
  bool peers = false;
  std::size_t bytes = 512U << 20U;
  std::string folder = ".";
  std::string json_path;
  std::string command_line;
};

// What is started in every round: ranks of this program, or the peers' script.
struct Contender {
  std::string_view name;
  std::string_view worker;  // of --worker; empty for a script
  bool one_rank;
};

constexpr Contender kContenders[] = {{"trireme", "save", false},
                                     {"plain", "plain", true},
                                     {"torch", "", true},
                                     {"dcp", "", false},
                                     {"steps of 1 rank", "steps", true},
                                     {"steps", "steps", false}};

// Medians are taken over these: by operation and number of ranks, then by who ("" is Trireme).
using Samples = std::map<std::pair<std::string, int>, std::map<std::string, std::vector<double>>>;

class CheckpointBench {
 public:
  explicit CheckpointBench(const CheckpointBenchOptions& options)
      : options_(options),
        tensors_(gpt_state(options.bytes)),
        scratch_(options.folder, "--folder") {
    const auto space = std::filesystem::space(options.folder);
    TRIREME_CHECK(space.available >= kCopiesOnDisk * state_bytes(tensors_),
                  "expected space for ",
                  bytes_text(static_cast<long long>(kCopiesOnDisk * state_bytes(tensors_))),
                  " in \"",
                  options.folder,
                  "\", found ",
                  bytes_text(static_cast<long long>(space.available)),
                  "; choose another place with --folder, or fewer --bytes");
    std::fprintf(stderr,
                 "checkpoints are written to %s (%s) and removed at the end\n",
                 scratch_.path().c_str(),
                 file_system_of(options.folder).c_str());
    if (in_memory()) {
      std::fprintf(stderr, "trireme: warning: %s\n", kNoDisk);
    }
    Json list = Json::array();
    for (const StateTensor& tensor : tensors_) {
      list.push_back({{"name", tensor.title()}, {"shape", tensor.shape}});
    }
    std::ofstream(scratch_.file("state.json")) << list;
  }

  // Returns the exit code of a job that was not measured to its end, else 0.
  int measure() {
    for (int round = 0; round < options_.rounds; ++round) {
      std::fprintf(stderr, "round %d of %d:", round + 1, options_.rounds);
      const std::vector<Contender> all(std::begin(kContenders), std::end(kContenders));
      for (const Contender& contender : turn_order(all, round, options_.rounds)) {
        if ((contender.worker.empty() && !options_.peers) ||
            (contender.name == "steps" && options_.ranks == 1)) {
          continue;
        }
        std::fprintf(stderr, " %s", std::string(contender.name).c_str());
        if (const int code = run(contender); code != 0) {
          std::fprintf(stderr, "\n");
          return code;
        }
      }
      std::fprintf(stderr, "\n");
    }
    return 0;
  }

  // Prints the table and returns it.
  Json report() {
    std::printf(
        "Trireme %s, LibTorch %s, %s, %s in %zu float32 tensors on %s, median ms (best) of %s\n",
        TRIREME_VERSION,
        libtorch_version(),
        detail::counted(options_.ranks, "rank").c_str(),
        bytes_text(static_cast<long long>(state_bytes(tensors_))).c_str(),
        tensors_.size(),
        file_system_of(options_.folder).c_str(),
        detail::counted(options_.rounds, "round").c_str());
    if (in_memory()) {
      std::printf("%s\n", kNoDisk);
    }
    for (const auto& [peer, settings] : settings_) {
      std::printf("%s: %s\n", peer.c_str(), settings.c_str());
    }
    std::fputs(same_terms_text().c_str(), stdout);
    std::fputs(host_text(options_.command_line).c_str(), stdout);
    Table table(
        {"operation", "ranks", "ms", "(best)", "MB/s", "beside", "ms", "(best)", "MB/s", "ratio"});
    Json json = Json::array();
    for (const char* op : {"save", "save_pause", "load_warm", "load_cold"}) {
      json.push_back(add_row(op, options_.ranks, table));
    }
    json.push_back(add_row("step_during_save", 1, table));
    if (options_.ranks > 1) {
      json.push_back(add_row("step_during_save", options_.ranks, table));
    }
    std::fputs(table.text().c_str(), stdout);
    for (const auto& [peer, why] : missing_) {
      std::printf("%s was not measured: %s\n", peer.c_str(), why.c_str());
    }
    return json;
  }

 private:
  bool in_memory() const {
    const std::string system = file_system_of(options_.folder);
    return system == "tmpfs" || system == "ramfs";
  }

  int run(const Contender& contender) {
    const std::string folder = scratch_.file("data");
    const std::string output = scratch_.file("samples.json");
    std::filesystem::create_directories(folder);
    const std::string name(contender.name);
    const int ranks = contender.one_rank ? 1 : options_.ranks;
    LaunchOptions job;
    job.threads = 1;
    job.rank0_speaks = true;
    if (!contender.worker.empty()) {
      job.ranks = ranks;
      job.command = {"/proc/self/exe",
                     "--worker",
                     std::string(contender.worker),
                     "--bytes",
                     std::to_string(options_.bytes),
                     "--folder",
                     folder,
                     "--output",
                     output};
    } else {
      if (missing_.count(name) > 0) {
        return 0;
      }
      const Peer peer =
          checkpoint_peer(name, options_.ranks, scratch_.file("state.json"), folder, output);
      if (!peer.missing.empty()) {
        missing_[name] = peer.missing;
        return 0;
      }
      job.command = peer.command;  // starts its own ranks
    }
    const int code = launch(job);
    std::filesystem::remove_all(folder);
    if (code == 0) {
      collect(output, contender.worker == "steps" ? ranks : options_.ranks);
    } else if (contender.worker.empty() && code == kExitRankFailed) {
      missing_[name] = "its program failed";
      return 0;
    }
    return code;
  }

  void collect(const std::string& output, int ranks) {
    std::ifstream file(output);
    for (const Json& line : Json::parse(file)) {
      auto& times = samples_[{line.at("op"), ranks}][line.at("peer")];
      const auto more = line.at("ms").get<std::vector<double>>();
      times.insert(times.end(), more.begin(), more.end());
      if (const std::string settings = line.value("settings", ""); !settings.empty()) {
        settings_[line.at("peer")] = settings;
      }
    }
  }

  // Megabytes in a second; of a step nothing that could be compared.
  Json speed(const std::string& op, double ms) const {
    return op == "step_during_save" ? Json(nullptr)
                                    : Json(static_cast<double>(state_bytes(tensors_)) / ms / 1e3);
  }

  Json add_row(const std::string& op, int ranks, Table& table) {
    const auto& systems = samples_[{op, ranks}];
    Json entry = {{"op", op},
                  {"ranks", ranks},
                  {"bytes", state_bytes(tensors_)},
                  {"ms", nullptr},
                  {"best_ms", nullptr},
                  {"mb_s", nullptr},
                  {"peers", Json::object()}};
    const auto ours = systems.find("");
    if (ours == systems.end()) {
      const std::string why = "its files stay in memory: --folder is not on a disk";
      entry["missing"] = why;
      missing_[op] = why;
      return entry;
    }
    const auto cells = [](double ms, double least, const Json& mb_s) {
      return std::vector<std::string>{number_text(ms),
                                      "(" + number_text(least) + ")",
                                      mb_s.is_null() ? "" : number_text(mb_s.get<double>())};
    };
    const double ms = median(ours->second);
    entry["ms"] = ms;
    entry["best_ms"] = best(ours->second);
    entry["mb_s"] = speed(op, ms);
    std::vector<std::string> row = {op, std::to_string(ranks)};
    const auto own = cells(ms, best(ours->second), entry["mb_s"]);
    row.insert(row.end(), own.begin(), own.end());
    if (systems.size() == 1) {
      table.add(row);
    }
    for (const auto& [name, times] : systems) {
      if (name.empty()) {
        continue;
      }
      const double theirs = median(times);
      const Json mb_s = speed(op, theirs);
      const auto settings = settings_.find(name);
      entry["peers"][name] = {{"ms", theirs},
                              {"best_ms", best(times)},
                              {"mb_s", mb_s},
                              {"ratio", theirs / ms},
                              {"settings", settings == settings_.end() ? "" : settings->second}};
      const auto other = cells(theirs, best(times), mb_s);
      row.push_back(name);
      row.insert(row.end(), other.begin(), other.end());
      row.push_back(number_text(theirs / ms) + "x");
      table.add(row);
      row = {"", "", "", "", ""};
    }
    return entry;
  }

  const CheckpointBenchOptions& options_;
  std::vector<StateTensor> tensors_;
  ScratchFolder scratch_;
  Samples samples_;
  std::map<std::string, std::string> settings_;  // of the peers
  std::map<std::string, std::string> missing_;
};

int run_conductor(const CheckpointBenchOptions& options) {
  JsonFile file(options.json_path);
  set_same_terms();
  std::signal(SIGPIPE, SIG_IGN);  // who reads no further gets no table, but leaves no files either
  CheckpointBench bench(options);
  if (const int code = bench.measure(); code != 0) {
    return code;
  }
  const Json json = bench.report();
  file.write(json.dump(1));
  return 0;
}

int run_worker(const std::string& worker, const CheckpointRankOptions& options) {
  if (worker == "save") {
    return run_save_and_load(options);
  }
  if (worker == "plain") {
    return run_plain_file(options);
  }
  TRIREME_CHECK(worker == "steps", "there is no worker ", worker);
  return run_steps_during_save(options);
}

int run(int argc, char** argv) {
  CheckpointBenchOptions options;
  CheckpointRankOptions rank_options;
  std::string worker;
  options.command_line = command_line(argc, argv);
  CLI::App program(
      "Measure saving and loading training state, the pause caused by a save in the background, "
      "and training steps during it.",
      "trireme bench checkpoint");
  program.add_option("-n,--ranks", options.ranks, "Number of ranks (default: 2)")
      ->check(CLI::Range(1, 64));
  program
      .add_option(
          "--bytes",
          options.bytes,
          "Approximate size of the state of all ranks together, such as 4GiB (default: 512MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{100'000}, std::uint64_t{1} << 50U));
  program
      .add_option("--rounds",
                  options.rounds,
                  "Number of rounds in which the systems take turns (default: 5)")
      ->check(CLI::Range(1, 100));
  program
      .add_option(
          "--folder",
          options.folder,
          "Where checkpoints are written, in a folder of their own that is removed again; it "
          "should be on the disk to be measured (default: the current folder)")
      ->type_name("FOLDER");
  program.add_flag(
      "--peers",
      options.peers,
      "Also measure torch.save and torch.distributed.checkpoint, taking turns in the same run");
  program.add_option("--json", options.json_path, "Also write the table as JSON")
      ->type_name("FILE");
  program.add_option("--worker", worker)->group("");
  program.add_option("--output", rank_options.output)->group("");
  if (const auto code = take_arguments(program, argc, argv)) {
    return *code;
  }
  if (worker.empty()) {
    return run_conductor(options);
  }
  rank_options.bytes = options.bytes;
  rank_options.folder = options.folder;
  return run_worker(worker, rank_options);
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  return trireme::bench::exit_code_of([&] { return trireme::bench::run(argc, argv); });
}
