#pragma once

#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/machine_facts.h"
#include "doctor/versions.h"

namespace trireme::detail {

// What the machine is to be used for.
struct Purpose {
  int ranks = 1;  // on this machine
  int machines = 1;
  std::string backend;                  // empty: chosen by Trireme
  std::vector<std::string> interfaces;  // empty: all
  int omp_threads = 0;                  // OMP_NUM_THREADS; 0: not set
};

// Processors' worth of time that this process may use.
int usable_processors(const MachineFacts& facts);

// One finding per check, in the order of their mention in the reports.
std::vector<Finding> check_versions(const Versions& versions,
                                    const std::string& kernel,
                                    const Purpose& purpose);
std::vector<Finding> check_machine(const MachineFacts& facts, const Purpose& purpose);

}  // namespace trireme::detail
