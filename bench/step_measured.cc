#include "step_measured.h"

#include <fstream>

#include "samples.h"

namespace trireme::bench {

void Measured::collect(const std::string& path) {
  std::ifstream file(path);
  last = nlohmann::json::parse(file);
  const auto more = last.at("ms").get<std::vector<double>>();
  ms.insert(ms.end(), more.begin(), more.end());
}

nlohmann::json Measured::json() const {
  return {{"ms", median(ms)},
          {"best_ms", best(ms)},
          {"held_bytes", last.at("held_bytes")},
          {"pss_bytes", last.at("pss_bytes")},
          {"system", last.at("system")},
          {"settings", last.at("settings")}};
}

}  // namespace trireme::bench
