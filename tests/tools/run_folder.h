#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

// Folders as trireme train leaves them, with contents that a test knows.

namespace trireme::testing {

inline void write_file(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << content;
}

// A run with these metrics ("\"loss\":0.5") and settings, without steps or samples.
inline void write_run(const std::string& folder,
                      const std::string& metrics,
                      const std::string& settings = R"("model":"mlp","data":"digits")",
                      const std::string& more = "") {
  const bool named = settings.find("\"model\"") != std::string::npos;  // as every run's is
  write_file(folder + "/config.json",
             (named ? "{" : R"({"model":"mlp")") +
                 std::string(named || settings.empty() ? "" : ",") + settings + "}");
  write_file(folder + "/summary.json",
             R"({"status":"finished","steps":100,"seconds":1.5,"metrics":{)" + metrics +
                 R"(},"memory":{"rank_bytes":84000000,"ddp_bytes":120000000},)" +
                 R"("communication_share":0.031)" + more + "}");
}

// metrics.jsonl with a loss that falls and this speed, one line per step.
inline void write_log(const std::string& folder, int steps, double speed) {
  std::string text;
  for (int step = 1; step <= steps; ++step) {
    const double wobble = 1 + 0.01 * (step % 5 - 2);
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(3.0 / step) +
            ",\"lr\":0.001,\"samples_per_second\":" + std::to_string(speed * wobble) + "}\n";
    if (step % 10 == 0) {
      text += "{\"step\":" + std::to_string(step) +
              ",\"eval\":{\"loss\":" + std::to_string(4.0 / step) + ",\"accuracy\":0.5}}\n";
    }
  }
  write_file(folder + "/metrics.jsonl", text);
}

struct SampleRow {
  int target;
  int prediction;
  double loss;
};

inline void write_evaluation(const std::string& folder,
                             const std::vector<SampleRow>& rows,
                             bool backwards = false,
                             const char* header = "sample,target,prediction,loss") {
  std::string text = std::string(header) + "\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t at = backwards ? rows.size() - 1 - i : i;
    text += std::to_string(at) + "," + std::to_string(rows[at].target) + "," +
            std::to_string(rows[at].prediction) + "," + std::to_string(rows[at].loss) + "\n";
  }
  write_file(folder + "/evaluation.csv", text);
}

}  // namespace trireme::testing
