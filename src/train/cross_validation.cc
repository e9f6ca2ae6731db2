#include "trireme/core/random.h"
#include "trireme/train/trainer.h"

namespace trireme {

std::vector<TrainResult> cross_validate(
    const TrainSettings& settings,
    const std::shared_ptr<const Dataset>& all,
    const std::function<std::shared_ptr<TrainObserver>(int fold, const Trainable& model)>&
        observer_of,
    const std::shared_ptr<World>& world,
    const std::function<bool()>& stop,
    const std::function<void(const TrainResult& fold)>& done) {
  std::vector<TrainResult> results;
  const auto folds = static_cast<int>(settings.folds);
  for (int fold = 0; fold < folds; ++fold) {
    const Parts parts = prepared(
        settings, fold_of(all, fold, folds, mix(settings.seed, 0x666f6c6473u)), *world);  // "folds"
    const Trainable model = make_model(settings, parts.train->shape());
    const std::shared_ptr<TrainObserver> observer = observer_of(fold, model);
    results.push_back(train(settings, model, parts, world, observer.get(), stop));
    if (done) {
      done(results.back());
    }
    if (results.back().status == TrainResult::Status::kInterrupted) {
      break;
    }
  }
  return results;
}

}  // namespace trireme
