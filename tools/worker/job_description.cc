#include "job_description.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/observe/progress_line.h"
#include "trireme/settings/device_choice.h"
#include "trireme/tensor/torch_cuda.h"

namespace trireme::worker {
namespace {

using detail::concat;
using detail::counted;

UsableGpus gpus_in_use(const TrainSettings& settings) {
  UsableGpus gpus = usable_gpus();
  gpus.names.resize(std::min(gpus.names.size(), static_cast<std::size_t>(settings.ranks)));
  return gpus;
}

}  // namespace

std::string job_description(const TrainSettings& settings, const Trainable& model, bool goes_on) {
  const bool on_gpu = settings.device == TrainDevice::kCuda;
  const std::string ranks = concat("{}{}, {}{} each",
                                   {counted(settings.ranks, "rank"),
                                    on_gpu ? concat(" on ", gpus_text(gpus_in_use(settings))) : "",
                                    model.in_parts       ? "ZeRO-3, built in parts, "
                                    : settings.zero > 0  ? concat("ZeRO-", settings.zero, ", ")
                                    : settings.ranks > 1 ? "DDP, "
                                                         : "",
                                    counted(at::get_num_threads(), "thread")});
  if (goes_on) {
    return "now " + ranks;
  }
  std::int64_t numel = 0;
  for (const auto& parameter : model.module->parameters()) {
    numel += parameter.numel();
  }
  return concat("{} with {} parameters, {}; run folder {}",
                {settings.model, count_text(static_cast<double>(numel)), ranks, settings.run});
}

}  // namespace trireme::worker
