#include "step_measured.h"

#include <fstream>

namespace trireme::bench {

void Measured::collect(const std::string& path) {
  std::ifstream file(path);
  last = nlohmann::json::parse(file);
  const auto more = last.at("ms").get<std::vector<double>>();
  ms.insert(ms.end(), more.begin(), more.end());
}

}  // namespace trireme::bench
