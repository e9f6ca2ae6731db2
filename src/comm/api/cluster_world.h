#pragma once

#include <string>
#include <vector>

#include "comm/api/communicator_builder.h"
#include "comm/api/job_environment.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

struct ClusterOptions {
  JobEnvironment place;
  std::string backend;  // auto, ucx or mpi
  std::vector<std::string> interfaces;
  int listener = -1;  // InitOptions::listener
};

// Brings ranks together that a network connects, and chooses what carries their data: completes
// `builder`. Collective, blocking; throws like `init`.
void join_cluster(const ClusterOptions& options, BuilderOptions* builder);

// What carries the data, for people; `network` is null on one machine.
std::string description_of(const Network* network, const World::Facts& facts);

}  // namespace trireme::detail
