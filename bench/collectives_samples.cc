#include "collectives_samples.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

namespace trireme::bench {
void CollectivesSamples::collect(const std::string& path) {
  std::ifstream file(path);
  const auto result = nlohmann::json::parse(file);
  system = result.at("system");
  settings = result.value("settings", "");
  for (const auto& line : result.at("lines")) {
    auto& times = ms[{line.at("op"), line.at("bytes"), line.value("owned", false)}];
    const auto more = line.at("ms").get<std::vector<double>>();
    times.insert(times.end(), more.begin(), more.end());
  }
}

std::vector<std::string> collective_ops(const CollectivesOptions& options) {
  static const std::vector<std::string> all_ops = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  return options.ops.empty() ? all_ops : options.ops;
}

std::vector<long long> collective_sizes(const CollectivesOptions& options) {
  static const std::vector<long long> all_sizes = {
      4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  return options.sizes.empty() ? all_sizes : options.sizes;
}

std::vector<std::string> peer_cases(const CollectivesOptions& options) {
  std::string ops;
  for (const std::string& op : collective_ops(options)) {
    ops += (ops.empty() ? "" : ",") + op;
  }
  std::string sizes;
  for (const long long size : collective_sizes(options)) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  }
  return {ops, sizes};
}

std::vector<std::string> collectives_rank_command(const CollectivesOptions& options,
                                                  int rounds,
                                                  const std::string& output) {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "bench",
                                    "collectives",
                                    "--worker",
                                    output,
                                    "--rounds",
                                    std::to_string(rounds)};
  for (const std::string& op : options.ops) {
    words.insert(words.end(), {"--op", op});
  }
  for (const long long size : options.sizes) {
    words.insert(words.end(), {"--bytes", std::to_string(size)});
  }
  return words;
}

}  // namespace trireme::bench
