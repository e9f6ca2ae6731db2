#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme::bench {

struct StepOptions {
  int ranks = 0;     // of each machine
  int machines = 0;  // of a test bed; 0: this machine as it is
  bool traffic = false;
  int rounds = 3;
  bool peers = false;
  std::string json_path;
  std::string only;
  std::string command_line;
};

// What one system has written about its steps, over all rounds.
struct Measured {
  std::vector<double> ms;
  nlohmann::json last;  // its memory and bytes, its version and settings

  void collect(const std::string& path);
  // Its times, memory and settings.
  nlohmann::json json() const;
};

}  // namespace trireme::bench
