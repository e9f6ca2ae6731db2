#include "train_bench.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "peers.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

// What one training was like.
struct Trained {
  double seconds = 0;  // of the steps, with feeding and reporting, without evaluation
  double accuracy = 0;
  double data_share = 0;
  double record_share = 0;
  std::string settings{};  // of a peer
};

Json json_of(const std::string& path) {
  std::ifstream file(path);
  TRIREME_CHECK(file.good(), "expected a result in \"", path, "\", found none");
  return Json::parse(file);
}

Trained train_ours(const std::string& model, double epochs, const std::string& run) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "trireme";
  const std::vector<std::string> command = {program,
                                            "train",
                                            "--model",
                                            model,
                                            "--epochs",
                                            std::to_string(epochs),
                                            "--ranks",  // as the peer: one process,
                                            "1",
                                            "--micro-batch",  // a batch in one piece
                                            "share",
                                            "--threads",
                                            "1",
                                            "--data-threads",  // as the peer: one thread does all
                                            "0",
                                            "--eval-every",
                                            "1000000",  // once, at the end
                                            "--log-every",
                                            "1000000",
                                            "--save-initial",
                                            "--record-samples",
                                            "--run",
                                            run};
  const int code = run_command(command, LastWords::kNo);
  TRIREME_CHECK(code == 0, "trireme train ended with ", code);
  const Json summary = json_of(run + "/summary.json");
  const double record_share = summary.at("record_share");
  return {.seconds = summary.at("seconds").get<double>() / (1 - record_share),
          .accuracy = summary.at("metrics").at("accuracy"),
          .data_share = summary.at("data_share"),
          .record_share = record_share};
}

// `run` is one of ours, whose batches, rates and initial weights it repeats.
Trained train_peer(const std::string& run, const std::string& layout) {
  const std::string output = run + "-" + layout + ".json";
  const Peer peer = train_peer_command(run, output, layout);
  TRIREME_CHECK(peer.missing.empty(), peer.name, " cannot be measured here: ", peer.missing);
  const int code = run_command(peer.command);
  TRIREME_CHECK(code == 0, peer.name, " ended with ", code);
  const Json result = json_of(output);
  return {.seconds = result.at("seconds"),
          .accuracy = result.at("accuracy"),
          .settings = result.at("settings")};
}

std::string percent(double share, const char* pattern = "%.2f %%") {
  char text[32];
  std::snprintf(text, sizeof(text), pattern, 100 * share);
  return text;
}

}  // namespace

int run_train_bench(const TrainBenchOptions& options) {
  JsonFile file(options.json_path);
  TRIREME_CHECK(options.model.empty() || options.model == "mlp" || options.model == "convnet",
                "--model: expected mlp or convnet, found \"",
                options.model,
                "\"");
  set_same_terms();
  const ScratchFolder folder;
  Json all = Json::array();
  std::string described;  // the peers' settings
  Table table({"model",
               "epochs",
               "PyTorch's layout",
               "ours s",
               "accuracy",
               "PyTorch s",
               "accuracy",
               "ours/PyTorch",
               "reading data",
               "reporting"});
  for (const std::string& model : std::vector<std::string>{"mlp", "convnet"}) {
    if (!options.model.empty() && model != options.model) {
      continue;
    }
    const double epochs = options.epochs > 0 ? options.epochs : model == "mlp" ? 10 : 6;
    // A convnet of ours keeps channels last; people who know PyTorch well do, too.
    const std::vector<std::string> layouts =
        !options.peers   ? std::vector<std::string>{}
        : model == "mlp" ? std::vector<std::string>{"plain"}
                         : std::vector<std::string>{"plain", "channels_last"};
    std::vector<double> ours;
    std::map<std::string, std::vector<double>> theirs;
    std::map<std::string, double> their_accuracy;
    std::map<std::string, std::string> their_settings;
    Trained last;
    std::vector<std::string> systems = layouts;
    systems.insert(systems.begin(), kOurName);
    for (int round = 0; round < options.rounds; ++round) {
      // Ours comes first in the first round, whose run the peers repeat in every round.
      for (const std::string& system : turn_order(systems, round, options.rounds)) {
        if (system == kOurName) {
          last = train_ours(model, epochs, folder.file(model + std::to_string(round)));
          ours.push_back(last.seconds);
          continue;
        }
        const Trained peer = train_peer(folder.file(model + "0"), system);
        theirs[system].push_back(peer.seconds);
        their_accuracy[system] = peer.accuracy;
        their_settings[system] = peer.settings;
      }
    }
    const std::vector<std::string> own = {number_text(median(ours)), percent(last.accuracy)};
    const std::vector<std::string> shares = {percent(last.data_share), percent(last.record_share)};
    if (layouts.empty()) {
      table.add(
          {model, number_text(epochs), "-", own[0], own[1], "-", "-", "-", shares[0], shares[1]});
    }
    for (const std::string& layout : layouts) {
      const double other = median(theirs[layout]);
      table.add({model,
                 number_text(epochs),
                 layout,
                 own[0],
                 own[1],
                 number_text(other),
                 percent(their_accuracy[layout]),
                 number_text(median(ours) / other),
                 shares[0],
                 shares[1]});
    }
    for (const auto& [layout, settings] : their_settings) {
      described += detail::concat(model, ", PyTorch ", layout, ": ", settings, "\n");
    }
    all.push_back({{"model", model},
                   {"epochs", epochs},
                   {"seconds", ours},
                   {"accuracy", last.accuracy},
                   {"peer_seconds", theirs},
                   {"peer_accuracy", their_accuracy},
                   {"peer_settings", their_settings},
                   {"data_share", last.data_share},
                   {"record_share", last.record_share}});
  }
  std::printf(
      "\nTrireme %s, training on Fashion-MNIST, one process, medians of %s in turns"
      "\n%s%s%s%s",
      TRIREME_VERSION,
      detail::counted(options.rounds, "round").c_str(),
      same_terms_text().c_str(),
      described.c_str(),
      host_text(options.command_line).c_str(),
      table.text().c_str());
  file.write(all.dump(2));
  return 0;
}

}  // namespace trireme::bench
