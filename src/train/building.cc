#include "train/building.h"

#include <algorithm>

#include "train/out_of_memory.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/parallel/sharded_model.h"
#include "trireme/settings/device_choice.h"
#include "trireme/settings/values.h"
#include "trireme/tensor/memory_limit.h"
#include "trireme/tensor/torch_cuda.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace detail {

BuildingLimit::BuildingLimit(const std::string& limit, double free_bytes)
    : limit_before_(MemoryLimit::limit_bytes()), most_before_(MemoryLimit::most_bytes()) {
  const auto wanted = memory_limit_bytes(limit);
  const auto most =
      static_cast<std::uint64_t>(std::max(1.0, kMostOfFreeMemory * std::max(0.0, free_bytes))) +
      MemoryLimit::used_bytes();
  MemoryLimit::set(0, wanted == 0 ? 0 : std::max(most, wanted.value_or(0)));
}

BuildingLimit::~BuildingLimit() {
  MemoryLimit::set(limit_before_, most_before_);
}

}  // namespace detail

namespace {

Trainable model_on_gpu(const TrainSettings& settings,
                       const SampleShape& shape,
                       Communicator& ranks) {
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

Trainable model_on_cpu(const TrainSettings& settings,
                       const SampleShape& shape,
                       Communicator& ranks) {
  const int here = ranks.machine().size();
  const auto free_bytes = static_cast<double>(available_memory_bytes()) / here;
  ranks.machine().barrier().wait();  // none begins to fill it before all have looked
  const detail::BuildingLimit limit(settings.memory_limit, free_bytes);
  if (settings.zero < 3 || here == 1) {
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

// What helps a job of these ranks. One alone has nobody to divide the model with.
std::string how_to_fit_model(const TrainSettings& settings, int ranks) {
  return ranks == 1          ? "a smaller model, or --zero 3 with more ranks or machines"
         : settings.zero < 3 ? "--zero 3, fewer ranks, or a smaller model"
                             : "a smaller model";
}

// A file of another type or byte order has tokens that nobody meant.
std::string about_vocabulary(const TrainSettings& settings, const SampleShape& shape) {
  constexpr std::int64_t kBytes = 256;  // of a text
  return shape.kind == SampleKind::kTokens && shape.classes > kBytes && settings.vocabulary == 0
             ? detail::concat(
                   ". The vocabulary is {}, one more than the largest token of the data: if that "
                   "is too many, check the size and the byte order of its tokens",
                   {shape.classes})
             : "";
}

}  // namespace

Trainable make_model(const TrainSettings& settings, const SampleShape& shape, Communicator& ranks) {
  try {
    return settings.device == TrainDevice::kCuda ? model_on_gpu(settings, shape, ranks)
                                                 : model_on_cpu(settings, shape, ranks);
  } catch (const std::exception& error) {
    if (!detail::ran_out_of_memory(error)) {
      throw;
    }
    throw MemoryError(
        detail::concat("the model is too large for the memory of a rank: {}: use {}{}",
                       {detail::reason_of(error),
                        how_to_fit_model(settings, ranks.size()),
                        about_vocabulary(settings, shape)}));
  }
}

}  // namespace trireme
