#include <cstdio>

#include "trireme/launch/launcher.h"
#include "trireme/tensor/torch_cuda.h"
#include "worker.h"

namespace trireme::worker {

int print_gpus() {
  const UsableGpus gpus = usable_gpus();
  for (const std::string& name : gpus.names) {
    std::printf("%s%s\n", kGpuLine, name.c_str());
  }
  if (gpus.names.empty()) {
    std::printf("%s%s\n", kNoGpuLine, gpus.why_none.c_str());
  }
  return kExitOk;
}

}  // namespace trireme::worker
