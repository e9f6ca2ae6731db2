#pragma once

#include <string>
#include <vector>

#include "launch/placement.h"
#include "trireme/launch/launcher.h"

// What has to be in place before the first rank is started.

namespace trireme::detail {

// What the ranks of one job share.
struct JobIdentity {
  std::string job;
  std::string token;         // random: only the ranks of this job have it
  std::string report_place;  // see launch_protocol.h
};

JobIdentity make_job_identity(const std::string& report_place);

// The complete environment of rank `rank`, NAME=VALUE.
std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const JobIdentity& identity,
                                          int rank,
                                          const Placement& placement);

// Makes room for the pipes of `ranks` ranks; throws ConfigError where the limit forbids it.
void raise_descriptor_limit(int ranks);

// Creates the folder; throws ConfigError when it cannot be written.
void make_log_dir(const std::string& folder);

}  // namespace trireme::detail
