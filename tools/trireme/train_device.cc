#include "train_device.h"

#include <iostream>

#include "sibling.h"
#include "trireme/doctor/doctor.h"
#include "trireme/settings/device_choice.h"

namespace trireme::tools {

TrainSettings with_device(const TrainSettings& wanted, bool several_machines) {
  UsableGpus gpus{.why_none = "GPUs are for jobs on one machine, and this one is on several"};
  if (wanted.device != TrainDevice::kCpu && !several_machines) {
    gpus = find_gpus(sibling_path("trireme-worker"));
  }
  DeviceChoice choice = choose_device(wanted, gpus);
  if (!choice.remark.empty()) {
    std::cerr << "trireme: " << choice.remark << "\n";
  }
  return choice.settings;
}

}  // namespace trireme::tools
