#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "launch/placement.h"
#include "trireme/core/deadline.h"
#include "trireme/launch/launcher.h"

// What has to be in place before the first rank is started.

namespace trireme::detail {

// What the ranks of one job share.
struct JobIdentity {
  std::string job;
  std::string token;         // random: only the ranks of this job have it
  std::string report_place;  // see launch_protocol.h
  bool begins = true;        // else it has begun, and this machine joins it
  std::int64_t epoch = 0;
  int first_rank = 0;  // of this machine
  int local_size = 1;
  int world_size = 1;
  std::string rendezvous;   // "HOST:PORT"; empty where all ranks are on one machine
  int rank0_listener = -1;  // a descriptor, on rank 0's machine
  // Where a program that was written for torchrun has its rank 0 listen (MASTER_ADDR, MASTER_PORT);
  // port 0: this machine has no network at all, not even with itself.
  std::string master_host;
  int master_port = 0;
};

// As much as the clock, which counts nanoseconds in 64 bits, can bear: ten years.
inline Milliseconds milliseconds_of(double seconds) {
  return Milliseconds(static_cast<std::int64_t>(std::min(seconds, 3e8) * 1000));
}

// A fresh name for a job, and a fresh token: not to be guessed.
std::string random_job_name();
std::string random_token();
// The token of a job's ranks made from the secret of its launchers: it never has to travel.
std::string token_from_secret(const std::string& secret, const std::string& job);

// The secret of the launchers, from the file or else from the variable TRIREME_TOKEN; empty where
// there is none, or "none". Throws ConfigError for a file that others may read.
std::string read_secret(const std::string& token_file);

// What the file holds, but for the end of its line; `source` is the flag that names it. Throws
// ConfigError for one that others may read.
std::string read_secret_file(const std::string& file, const std::string& source);

// The complete environment of a rank of this machine, NAME=VALUE.
std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const JobIdentity& identity,
                                          int local_rank,
                                          const Placement& placement);

// Makes room for the pipes of the ranks, the memory that an elastic job keeps and the connections
// to other machines; throws ConfigError where the limit forbids it.
void raise_descriptor_limit(const LaunchOptions& options);

// Creates the folder; throws ConfigError when it cannot be written.
void make_log_dir(const std::string& folder);

}  // namespace trireme::detail
