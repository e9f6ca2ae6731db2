#pragma once

#include <string>

#include "trireme/core/error.h"

// The files through which the doctor of a machine and its ranks talk to each other, in a folder of
// their own.

namespace trireme::detail {

// What the doctor found out about its machine, for the first rank there to pass on.
inline std::string machine_file(const std::string& folder) {
  return folder + "/machine.json";
}

// What the ranks of all machines found out; written by the first rank of each machine.
inline std::string report_file(const std::string& folder) {
  return folder + "/report.json";
}

// Why a rank failed. Ranks are counted on their machine here, so that the doctor knows the names.
inline std::string failure_file(const std::string& folder, int local_rank) {
  return concat(folder, "/failure-", local_rank, ".json");
}

}  // namespace trireme::detail
