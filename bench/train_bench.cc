#include "train_bench.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "table.h"
#include "trireme/core/error.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

// What one training was like.
struct Trained {
  double seconds = 0;  // of the steps, with feeding and reporting, without evaluation
  double accuracy = 0;
  double data_share = 0;
  double record_share = 0;
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
  const int code = run_command(command);
  TRIREME_CHECK(code == 0, "trireme train ended with ", code);
  const Json summary = json_of(run + "/summary.json");
  const double record_share = summary.at("record_share");
  return {.seconds = summary.at("seconds").get<double>() / (1 - record_share),
          .accuracy = summary.at("metrics").at("accuracy"),
          .data_share = summary.at("data_share"),
          .record_share = record_share};
}

Trained train_peer(const std::string& run, const std::string& output) {
  const Peer peer = train_peer_command(run, output);
  TRIREME_CHECK(peer.missing.empty(), peer.name, " cannot be measured here: ", peer.missing);
  const int code = run_command(peer.command);
  TRIREME_CHECK(code == 0, peer.name, " ended with ", code);
  const Json result = json_of(output);
  return {.seconds = result.at("seconds"), .accuracy = result.at("accuracy")};
}

std::string percent(double share, const char* pattern = "%.2f %%") {
  char text[32];
  std::snprintf(text, sizeof(text), pattern, 100 * share);
  return text;
}

}  // namespace

int run_train_bench(const TrainBenchOptions& options) {
  TRIREME_CHECK(options.model.empty() || options.model == "mlp" || options.model == "convnet",
                "--model: expected mlp or convnet, found \"",
                options.model,
                "\"");
  const ScratchFolder folder;
  Json all = Json::array();
  Table table({"model",
               "epochs",
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
    const double epochs = options.epochs > 0 ? options.epochs : model == "mlp" ? 5 : 2;
    std::vector<double> ours;
    std::vector<double> theirs;
    Trained last;
    Trained peer;
    for (int round = 0; round < options.rounds; ++round) {
      const std::string run = folder.file(model + std::to_string(round));
      last = train_ours(model, epochs, run);
      ours.push_back(last.seconds);
      if (options.peers) {
        peer = train_peer(run, run + ".json");
        theirs.push_back(peer.seconds);
      }
    }
    const double own = median(ours);
    const double other = options.peers ? median(theirs) : 0;
    table.add({model,
               number_text(epochs),
               number_text(own),
               percent(last.accuracy),
               options.peers ? number_text(other) : "-",
               options.peers ? percent(peer.accuracy) : "-",
               options.peers ? number_text(own / other) : "-",
               percent(last.data_share),
               percent(last.record_share)});
    all.push_back({{"model", model},
                   {"epochs", epochs},
                   {"seconds", ours},
                   {"accuracy", last.accuracy},
                   {"peer_seconds", theirs},
                   {"peer_accuracy", peer.accuracy},
                   {"data_share", last.data_share},
                   {"record_share", last.record_share}});
  }
  std::printf(
      "\nTraining on Fashion-MNIST, one process, one thread; medians of %d rounds in turns\n\n%s",
      options.rounds,
      table.text().c_str());
  if (!options.json_path.empty()) {
    std::ofstream(options.json_path) << all.dump(2) << "\n";
  }
  return 0;
}

}  // namespace trireme::bench
