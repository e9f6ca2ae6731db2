#include <sstream>

#include <dlfcn.h>

#include "device/cuda/cuda_driver.h"
#include "doctor/ask_program.h"
#include "trireme/core/error.h"
#include "trireme/doctor/doctor.h"

namespace trireme {

UsableGpus find_gpus(const std::string& worker) {
  // Only a look whether there is a driver: what it is asked belongs to a process that ends.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    return {.why_none = device::examine_gpus().why_none};
  }
  dlclose(driver);
  constexpr Milliseconds kTimeToLook{120'000};  // a driver that starts all its GPUs
  const detail::Answer answer = detail::ask_program({worker, "gpus"}, kTimeToLook);
  UsableGpus found;
  std::istringstream lines(answer.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kGpuLine)) {
      found.names.push_back(line.substr(sizeof(kGpuLine) - 1));
    } else if (line.starts_with(kNoGpuLine)) {
      found.why_none = line.substr(sizeof(kNoGpuLine) - 1);
    }
  }
  if (found.names.empty() && found.why_none.empty()) {
    found.why_none = detail::concat("{} gpus, which looks for them, ended with code {}: {}",
                                    {worker, answer.code, answer.text});
  }
  return found;
}

}  // namespace trireme
