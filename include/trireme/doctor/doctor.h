#pragma once

#include <string>
#include <vector>

#include "trireme/core/usable_gpus.h"
#include "trireme/launch/launcher.h"

namespace trireme {

// What `trireme doctor` looks at.
struct DoctorOptions {
  // How the ranks that measure each other are started: their number on this machine (0: one per
  // processor, at most 8), machines, rendezvous, backend. `command` and `name` are set by the call.
  LaunchOptions launch;
  // Where runs will be written: its disk is measured. Empty: runs/ where it exists, else here.
  std::string folder;
  // The report as JSON goes to this file too; "-": to standard output, in place of the table.
  std::string json_path;
};

// Examines this machine, starts ranks that measure each other, and prints what was found with what
// to change. Returns 0 where nothing is a problem, 1 where something is, 128 + N when ended by
// signal N. Throws ConfigError for options that make no sense. The calling program must call
// `run_doctor_rank` when it is started with the arguments `doctor --worker FOLDER`.
int run_doctor(const DoctorOptions& options);

// The part of a rank. Returns its exit code; what went wrong is in a file in `folder`.
int run_doctor_rank(const std::string& folder);

// The GPUs of this machine for training. `worker`: the path of trireme-worker, which knows LibTorch
// and is asked (`trireme-worker gpus`) where there is a driver of NVIDIA's; without one this takes
// no time.
UsableGpus find_gpus(const std::string& worker);

}  // namespace trireme
