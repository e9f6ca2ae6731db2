#include "trireme/train/trainer.h"

#include "train/same_data.h"
#include "train/sampling_choice.h"
#include "train/target_scale.h"
#include "train/training.h"
#include "trireme/core/error.h"
#include "trireme/train/half_speed.h"
#include "trireme/train/weights.h"

namespace trireme {

TrainResult train(const TrainSettings& settings,
                  const Trainable& model,
                  const Parts& data,
                  const std::shared_ptr<World>& world,
                  TrainObserver* observer,
                  const std::function<bool()>& stop,
                  const TrainCheckpoints& checkpoints) {
  TRIREME_CHECK(model.module && model.scores && data.train, "train: expected a model and data");
  detail::check_micro_batch(settings);
  const bool looks_at_data =
      world->size() > 1 || !checkpoints.folder.empty() || checkpoints.vault != nullptr;
  const std::int64_t fingerprint =
      looks_at_data ? detail::fingerprint_of_all_ranks(data, *world) : 0;
  detail::check_batch(settings, *data.train);
  const auto say = [observer](const std::string& text) {
    if (observer != nullptr && !text.empty()) {
      observer->message(text);
    }
  };
  TrainSettings here = settings;
  here.ranks = world->size();  // whoever has started them
  const bool on_gpu = !device_of(*model.module).is_cpu();
  here.device = on_gpu ? TrainDevice::kCuda : TrainDevice::kCpu;
  if (observer != nullptr && !on_gpu) {
    say(slow_precision_warning(here.precision, slowdown_of_precision(here.precision)));
  }
  if (here.save_weights || here.save_initial) {
    check_weights(*model.module,
                  "save_weights: the model cannot be written to a file (train it with "
                  "save_weights and save_initial off, or change it)");
  }
  detail::RunCheckpoints kept(here, checkpoints, *model.module, world, observer);
  // Whoever resumes was told; what another task makes of targets is its own business.
  if (observer != nullptr && !kept.resumed_step() && world->epoch() == 0 && !model.task) {
    say(detail::unusual_target_scale(*data.train));
  }
  return detail::Training(
             {here, model, data, fingerprint, world, observer, stop, kept, checkpoints.vault.get()})
      .run();
}

}  // namespace trireme
