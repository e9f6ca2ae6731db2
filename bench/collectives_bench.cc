#include "collectives_bench.h"

#include <cstdio>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "collectives_samples.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "test_bed.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "turn_order.h"

// The systems take turns (turn_order.h). Each times every call on rank 0, back to back, after a
// warm-up, in memory that it has touched before; the table shows the median over all rounds. All
// use float32.

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

class CollectivesBench {
 public:
  explicit CollectivesBench(const CollectivesOptions& options)
      : options_(options),
        bed_(options.machines > 0 ? std::make_unique<TestBed>(options.machines) : nullptr),
        machines_(bed_ ? options.machines : options.launch.nodes),
        ranks_(options.launch.ranks > 0 ? options.launch.ranks
               : machines_ > 1          ? 1
                                        : 2) {}

  // 0, or the exit code of the job that failed.
  int measure() {
    // By hand on several machines there are no peers to take turns with, and one meeting is enough.
    const bool by_hand = !bed_ && machines_ > 1;
    const int rounds = by_hand ? 1 : options_.rounds;
    for (int round = 0; round < rounds; ++round) {
      say("round " + std::to_string(round + 1) + " of " + std::to_string(rounds) + ":");
      for (const Peer& system : turn_order(systems_of(round), round, rounds)) {
        say(" " + system.name);
        const int code = system.name == kOurName ? measure_ours(by_hand ? options_.rounds : 1)
                                                 : measure_peer(system);
        if (code != 0) {
          return code;
        }
      }
      say("\n");
    }
    return 0;
  }

  bool speaks() const { return options_.launch.node_rank == 0; }

  Json report() {
    std::printf("%s; %s of 1 thread, float32, median ms (best) of %s\n",
                ours_.system.c_str(),
                place_text().c_str(),
                detail::counted(options_.rounds, "round").c_str());
    std::printf("trireme: %s\n", ours_.settings.c_str());
    for (const auto& [name, samples] : theirs_) {
      std::printf("%s: %s; %s\n", name.c_str(), samples.system.c_str(), samples.settings.c_str());
    }
    std::fputs(same_terms_text().c_str(), stdout);
    std::fputs(host_text(options_.command_line).c_str(), stdout);
    std::vector<std::string> header = {"operation", "bytes", "buffer", "trireme", "(best)"};
    for (const std::string& name : names_) {
      header.insert(header.end(), {name, "(best)", "ratio"});
    }
    Table table(header);
    Json json = Json::array();
    for (const std::string& op : collective_ops(options_)) {
      for (const long long bytes : collective_sizes(options_)) {
        for (const bool owned : {true, false}) {
          json.push_back(add_row(op, bytes, owned, table));
        }
      }
    }
    std::fputs(table.text().c_str(), stdout);
    for (const auto& [name, why] : missing_) {
      std::printf("%s was not measured: %s\n", name.c_str(), why.c_str());
    }
    if (bed_) {
      std::printf("Sent over the interfaces of all machines in a round, MB:");
      for (const auto& [name, bytes] : sent_) {
        std::printf(" %s %.0f", name.c_str(), static_cast<double>(bytes) / 1e6);
      }
      std::printf(" (trireme measures two buffers, the others one)\n");
    }
    return json;
  }

 private:
  // Progress, on the machine that prints.
  void say(const std::string& text) const {
    if (speaks()) {
      std::fputs(text.c_str(), stderr);
    }
  }

  std::string place_text() const {
    std::string ranks = detail::counted(ranks_, "rank");
    if (machines_ == 1) {
      return ranks;
    }
    return std::to_string(machines_) + " machines" +
           (bed_ ? " (network namespaces of one host)" : "") + " x " + ranks;
  }

  // Runs one turn, and keeps what the machines sent meanwhile.
  template <typename Turn>
  int counted(const std::string& name, const Turn& turn) {
    const std::int64_t before = bed_ ? bed_->bytes_sent() : 0;
    const int code = turn();
    if (bed_) {
      sent_[name] = bed_->bytes_sent() - before;
    }
    return code;
  }

  int measure_ours(int rounds) {
    LaunchOptions job = options_.launch;
    const std::string output = scratch_.file("ours.json");
    job.ranks = ranks_;
    job.threads = 1;
    job.command = collectives_rank_command(options_, rounds, output);
    const int code = counted(kOurName, [&] { return bed_ ? launch_on(*bed_, job) : launch(job); });
    if (code == 0 && speaks()) {
      ours_.collect(output);
    }
    return code;
  }

  // Trireme, whose command measure_ours knows, and the peers that can be measured.
  std::vector<Peer> systems_of(int round) {
    std::vector<Peer> systems = {Peer{kOurName, "", {}}};
    if (!options_.peers) {
      return systems;
    }
    const auto cases = peer_cases(options_);
    // Gloo's ranks meet in a file, which must be new.
    const std::string meeting = scratch_.file("meeting-" + std::to_string(round));
    names_.clear();
    for (const Peer& peer :
         bed_ ? collective_peers_on(
                    *bed_, ranks_, options_.launch.interfaces, cases, meeting, peer_output())
              : collective_peers(ranks_, cases, peer_output())) {
      names_.push_back(peer.name);
      if (!peer.missing.empty()) {
        missing_[peer.name] = peer.missing;
      }
      if (missing_.count(peer.name) == 0) {
        systems.push_back(peer);
      }
    }
    return systems;
  }

  std::string peer_output() const { return scratch_.file("peer.json"); }

  int measure_peer(const Peer& peer) {
    const int code = counted(peer.name, [&] {
      return bed_ ? run_together(peer.on_machines) : run_command(peer.command);
    });
    if (bed_ && code > 128) {
      return code;  // a signal, to this process most likely
    }
    if (code != 0) {
      missing_[peer.name] = "its program failed with exit code " + std::to_string(code);
    } else {
      theirs_[peer.name].collect(peer_output());
    }
    return 0;
  }

  Json add_row(const std::string& op, long long bytes, bool owned, Table& table) {
    const auto& times = ours_.ms.at({op, bytes, owned});
    std::vector<std::string> row = {op,
                                    bytes_text(bytes),
                                    owned ? "owned" : "any",
                                    number_text(median(times)),
                                    "(" + number_text(best(times)) + ")"};
    Json entry = {{"op", op},
                  {"bytes", bytes},
                  {"machines", machines_},
                  {"ranks", machines_ * ranks_},
                  {"owned", owned},
                  {"ms", median(times)},
                  {"best_ms", best(times)},
                  {"settings", ours_.settings},
                  {"gloo_ms", nullptr},
                  {"mpi_ms", nullptr}};
    for (const std::string& name : names_) {
      const auto& samples = theirs_[name].ms;
      const auto found = samples.find({op, bytes, false});
      if (found == samples.end()) {
        row.insert(row.end(), {"-", "", ""});
        continue;
      }
      const double theirs = median(found->second);
      row.insert(row.end(),
                 {number_text(theirs),
                  "(" + number_text(best(found->second)) + ")",
                  number_text(theirs / median(times)) + "x"});
      entry[name + "_ms"] = theirs;
      entry[name + "_best_ms"] = best(found->second);
      entry[name + "_settings"] = theirs_[name].system + "; " + theirs_[name].settings;
    }
    table.add(row);
    return entry;
  }

  const CollectivesOptions& options_;
  std::unique_ptr<TestBed> bed_;
  int machines_;
  int ranks_;  // of each machine; by hand the others' may differ
  ScratchFolder scratch_;
  CollectivesSamples ours_;
  std::vector<std::string> names_;  // of the peers
  std::map<std::string, CollectivesSamples> theirs_;
  std::map<std::string, std::string> missing_;
  std::map<std::string, std::int64_t> sent_;
};

void check(const CollectivesOptions& options) {
  TRIREME_CHECK(options.machines == 0 || options.launch.nodes == 1,
                "--machines makes a test bed on this host, --nnodes joins existing machines: "
                "expected one of them, found both");
  TRIREME_CHECK(!options.peers || options.launch.nodes == 1,
                "--peers: expected one machine or a test bed (--machines), found --nnodes ",
                options.launch.nodes,
                "; the peers must be started by hand there");
}

}  // namespace

int run_collectives_bench(const CollectivesOptions& options) {
  if (!options.worker_output.empty()) {
    return run_collectives_rank(options);
  }
  if (options.rails) {
    return run_rails_bench(options);
  }
  check(options);
  JsonFile file(options.json_path);
  set_same_terms();
  CollectivesBench bench(options);
  if (const int code = bench.measure(); code != 0) {
    return code;
  }
  if (bench.speaks()) {
    const Json json = bench.report();
    file.write(json.dump(1));
  }
  return 0;
}

}  // namespace trireme::bench
