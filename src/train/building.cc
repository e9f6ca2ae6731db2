#include "trireme/core/error.h"
#include "trireme/parallel/sharded_model.h"
#include "trireme/settings/device_choice.h"
#include "trireme/tensor/torch_cuda.h"
#include "trireme/train/trainer.h"

namespace trireme {

Trainable make_model(const TrainSettings& settings, const SampleShape& shape, Communicator& ranks) {
  if (settings.device == TrainDevice::kCuda) {
    TRIREME_CHECK(ranks.one_machine(),
                  "device: the ranks of a job on GPUs are on one machine, found several machines: "
                  "use one, or --device cpu");
    const UsableGpus gpus = usable_gpus();
    choose_device(settings, gpus);  // throws where it cannot be
    const at::Device gpu = use_gpu(gpu_of_rank(ranks.machine().rank(), gpus));
    // Built on the CPU, where it begins with the same weights.
    Trainable model = make_model(settings, shape);
    model.module->to(gpu);
    return model;
  }
  if (settings.zero < 3 || ranks.machine().size() == 1) {
    return make_model(settings, shape);
  }
  Trainable model;
  build_sharded(ranks, [&] {
    model = make_model(settings, shape);
    return model.module;
  });
  model.in_parts = true;
  return model;
}

}  // namespace trireme
