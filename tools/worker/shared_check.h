#pragma once

#include <string>

#include "trireme/comm/world.h"
#include "trireme/data/source.h"

namespace trireme::worker {

// The ranks check a file together, each with its share of the machine's processors. `resumes`: what
// the run in this folder has checked already need not be checked again.
SharedCheck shared_check(const std::string& run, bool resumes, World& world);

}  // namespace trireme::worker
