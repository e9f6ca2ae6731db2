#include "trireme/parallel/sharded_model.h"
#include "trireme/train/trainer.h"

namespace trireme {

Trainable make_model(const TrainSettings& settings, const SampleShape& shape, Communicator& ranks) {
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
