// Steps of a large model over a slow link: what each mode sends, and what that takes.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>

#include "number_text.h"
#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "sync_bench.h"
#include "sync_mode.h"
#include "sync_rank.h"
#include "test_bed.h"
#include "traffic.h"
#include "trireme/core/concat.h"
#include "trireme/core/table.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

constexpr const char* kPostLocalPeer = "torch-post-local-sgd";
constexpr int kLargeSetting = 0;  // in bench/peers/step_common.py
constexpr int kSmallPeerSetting = 2;

// Steps, and how many of them before, that one turn of a mode takes.
struct Turn {
  int warm_up;
  int timed;
};

class LinkExperiment {
 public:
  explicit LinkExperiment(const SyncPlace& place) : place_(place) {
    const SyncOptions& options = place.options;
    const std::string every = ":" + std::to_string(options.every);
    modes_ = {"exact",
              "local" + every,
              "diloco" + every,
              "gossip" + every,
              "stale:" + std::to_string(options.staleness),
              "async"};
    systems_ = modes_;
    if (options.peers) {
      systems_.insert(systems_.end(), {"torch-ddp", kPostLocalPeer});
    }
  }

  int measure() {
    for (int round = 0; round < place_.options.rounds; ++round) {
      std::fprintf(stderr, "link, round %d of %d: alone", round + 1, place_.options.rounds);
      if (const int code = measure_alone(); code != 0) {
        return code;
      }
      for (const std::string& system : turn_order(systems_, round, place_.options.rounds)) {
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

  void report(SyncFindings& findings) const {
    Table table({"sync",
                 "MB by formula",
                 "on the interface",
                 "of exact",
                 "ms",
                 "link allows",
                 "reached",
                 "of exact",
                 "peer",
                 "ms",
                 "ours / peer"});
    for (const std::string& mode : modes_) {
      add_row(mode, table, findings.json);
    }
    const nlohmann::json& exact = last_.at("exact");
    findings.text = detail::concat(
        "Steps of a GPT of ",
        number_text(exact.at("parameters").get<double>() / 1e6),
        " M parameters, 2 machines (network namespaces of one host) x 1 rank of 1 thread, ",
        place_.options.megabits,
        " Mbit/s (",
        exact.at("system").get<std::string>(),
        ")\n",
        table.text());
    for (const auto& [peer, why] : missing_) {
      findings.text += detail::concat(peer, " was not measured: ", why, "\n");
    }
    findings.text += detail::concat(
        "Mean over whole steps, between averagings and with them. MB: sent by a rank in a step. "
        "link "
        "allows: ",
        number_text(median(alone_ms_)),
        " ms of one rank alone, and the time in which\nthe link carries the bytes of the formula "
        "and "
        "the headers of their frames, one after the other; reached: that / ms, above 1 where they "
        "overlap.\n");
  }

 private:
  Turn turn(const SyncMode& mode) const {
    if (!mode.averages()) {
      return {2, place_.options.steps};
    }
    // Whole rounds of steps with an averaging each.
    return {mode.number, mode.number * std::max(1, place_.options.steps / 2)};
  }

  SyncTask task(const std::string& mode) const {
    SyncTask task;
    task.mode = mode;
    task.small = place_.options.smoke;
    const Turn steps = turn(SyncMode::parse(mode));
    task.warm_up = steps.warm_up;
    task.timed = steps.timed;
    return task;
  }

  int measure_alone() {
    LaunchOptions job;
    job.ranks = 1;
    job.threads = 1;
    job.command = task("exact").command(output());
    const int code = launch(job);
    if (code == 0) {
      alone_ms_.push_back(sync_rank_result(output()).at("ms").get<double>());
    }
    return code;
  }

  int measure_own(const std::string& mode) {
    LaunchOptions job;
    job.ranks = 1;
    job.command = task(mode).command(output());
    const int code = launch_on(*place_.bed, job);
    if (code == 0) {
      last_[mode] = sync_rank_result(output());
      ms_[mode].push_back(last_[mode].at("ms").get<double>());
    }
    return code;
  }

  int measure_peer(const std::string& name) {
    if (missing_.count(name) > 0) {
      return 0;
    }
    const bool averages = name == kPostLocalPeer;
    const Turn steps = turn(SyncMode::parse(averages ? modes_[1] : modes_[0]));
    setenv("TRIREME_PEER_STEPS", detail::concat(steps.warm_up, " ", steps.timed).c_str(), 1);
    setenv("TRIREME_PEER_EVERY", std::to_string(place_.options.every).c_str(), 1);
    const std::string meeting = place_.scratch.file("meeting-" + std::to_string(meetings_++));
    const int setting = place_.options.smoke ? kSmallPeerSetting : kLargeSetting;
    const Peer peer = step_peer_on(*place_.bed, name, 1, setting, meeting, output());
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
      return 0;
    }
    last_[name] = sync_rank_result(output());
    const auto ms = last_[name].at("ms").get<std::vector<double>>();
    ms_[name].push_back(std::accumulate(ms.begin(), ms.end(), 0.0) /
                        static_cast<double>(ms.size()));
    return 0;
  }

  void add_row(const std::string& mode, Table& table, nlohmann::json& rows) const {
    const nlohmann::json& last = last_.at(mode);
    const double parameters = last.at("parameters");
    const double formula = bytes_by_formula(SyncMode::parse(mode), place_.bed->size(), parameters);
    const double exact_formula = bytes_by_formula({"exact"}, place_.bed->size(), parameters);
    const double sent = last.at("interface_bytes");
    const double ms = median(ms_.at(mode));
    const double exact_ms = median(ms_.at("exact"));
    const double allowed = median(alone_ms_) + link_ms(formula, place_.options.megabits);
    std::vector<std::string> cells = {mode,
                                      number_text(formula / 1e6),
                                      number_text(sent / 1e6),
                                      number_text(formula / exact_formula),
                                      number_text(ms),
                                      number_text(allowed),
                                      number_text(allowed / ms),
                                      number_text(ms / exact_ms)};
    nlohmann::json row = {{"sync", mode},
                          {"parameters", parameters},
                          {"formula_bytes", formula},
                          {"interface_bytes", sent},
                          {"ledger_bytes", last.at("ledger_bytes")},
                          {"ms", ms},
                          {"alone_ms", median(alone_ms_)},
                          {"link_allows_ms", allowed}};
    const char* peer = mode == "exact" ? "torch-ddp" : mode == modes_[1] ? kPostLocalPeer : "";
    if (const auto theirs = ms_.find(peer); theirs != ms_.end()) {
      const double their_ms = median(theirs->second);
      cells.insert(cells.end(), {peer, number_text(their_ms), number_text(ms / their_ms)});
      row["peer"] = {{"name", peer},
                     {"ms", their_ms},
                     {"system", last_.at(peer).at("system")},
                     {"settings", last_.at(peer).at("settings")}};
    } else {
      cells.insert(cells.end(), {"", "", ""});
    }
    table.add(cells);
    rows.push_back(row);
  }

  std::string output() const { return place_.scratch.file("link.json"); }

  const SyncPlace& place_;
  std::vector<std::string> modes_;
  std::vector<std::string> systems_;
  std::vector<double> alone_ms_;
  std::map<std::string, std::vector<double>> ms_;  // by system
  std::map<std::string, nlohmann::json> last_;     // by system
  std::map<std::string, std::string> missing_;
  int meetings_ = 0;
};

}  // namespace

int measure_link(const SyncPlace& place, SyncFindings& findings) {
  LinkExperiment experiment(place);
  const int code = experiment.measure();
  if (code == 0) {
    experiment.report(findings);
  }
  return code;
}

}  // namespace trireme::bench
