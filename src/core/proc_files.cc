#include "trireme/core/proc_files.h"

#include <fstream>
#include <utility>

#include "trireme/core/error.h"

namespace trireme {

std::string proc_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) {
      continue;
    }
    const auto end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1);
    if (line.substr(0, end + 1) == name) {
      const auto begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return {};
}

std::string processor_name(const std::string& root) {
  const std::string cpuinfo = root + "/proc/cpuinfo";
  if (std::string name = proc_field(cpuinfo, "model name"); !name.empty()) {
    return name;
  }
  const std::string maker = proc_field(cpuinfo, "CPU implementer");
  const std::string part = proc_field(cpuinfo, "CPU part");
  if (maker.empty() || part.empty()) {
    return "";
  }
  constexpr std::pair<const char*, const char*> kArmParts[] = {
      {"0xd08", "Cortex-A72"},
      {"0xd0b", "Cortex-A76"},
      {"0xd0c", "Neoverse-N1"},
      {"0xd40", "Neoverse-V1"},
      {"0xd49", "Neoverse-N2"},
      {"0xd4f", "Neoverse-V2"},
      {"0xd84", "Neoverse-V3"},
      {"0xd8e", "Neoverse-N3"},
  };
  for (const auto& [number, name] : kArmParts) {
    if (maker == "0x41" && part == number) {
      return detail::concat("Arm ", name);
    }
  }
  return detail::concat("implementer ", maker, ", part ", part);
}

}  // namespace trireme
