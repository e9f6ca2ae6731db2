#pragma once

#include <string>

#include <nlohmann/json.hpp>

// `trireme bench sync`: what loose synchronisation is worth, in four experiments.

namespace trireme::bench {

class TestBed;
class ScratchFolder;

struct SyncOptions {
  int rounds = 1;
  int steps = 4;
  int megabits = 100;
  int every = 16;
  int staleness = 3;
  int seeds = 3;
  int loss_steps = 320;
  int paced_steps = 60;
  double pace_ms = 100;  // long beside what anything else on the machine takes
  std::string only{};
  bool smoke = false;
  bool peers = false;
  std::string json_path{};
  std::string command_line{};
};

// Where the experiments are made.
struct SyncPlace {
  const SyncOptions& options;
  const TestBed* bed;  // two machines and a slow link; null where no experiment needs them
  const ScratchFolder& scratch;
};

// What an experiment has shown: tables, and rows.
struct SyncFindings {
  std::string text{};
  nlohmann::json json = nlohmann::json::array();
};

// Each returns an exit code: that of a command that failed, or 128 + the number of a signal.
using SyncExperiment = int (*)(const SyncPlace& place, SyncFindings& findings);
// Steps of a large model over the slow link.
int measure_link(const SyncPlace& place, SyncFindings& findings);
// Whole trainings of a small model over the slow link: their time, and their loss.
int measure_loss(const SyncPlace& place, SyncFindings& findings);
// A rank that is three times as slow as the other for good.
int measure_slow_rank(const SyncPlace& place, SyncFindings& findings);
// Ranks that stall now and then.
int measure_stalls(const SyncPlace& place, SyncFindings& findings);

}  // namespace trireme::bench
