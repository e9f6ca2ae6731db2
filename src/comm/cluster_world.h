#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/flight_folder.h"
#include "comm/job_environment.h"
#include "comm/rendezvous/rendezvous.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

struct ClusterOptions {
  JobEnvironment place;
  RendezvousOptions meeting;  // of the ranks of one machine; its identity is the world's
  std::string job;
  int world = 0;
  std::string backend;  // auto, ucx or mpi
  std::vector<std::string> interfaces;
  bool progress_thread = false;
  FlightFolder flight_folder;
};

// The communicator of ranks that a network connects: brings them together, chooses what carries
// their data, and puts shared memory under it where a machine has several. Completes `facts`.
// Collective, blocking; throws like `init`.
std::unique_ptr<Communicator> make_cluster_communicator(const ClusterOptions& options,
                                                        World::Facts* facts);

}  // namespace trireme::detail
