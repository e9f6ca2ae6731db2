#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// A fold that had ended is one of the same cross-validation, which only its samples can tell, and
// has the bits that it would have here.
void check_earlier(int fold,
                   const TrainResult& earlier,
                   const Dataset& held_out,
                   const std::string& data,
                   const Communicator& ranks) {
  std::uint64_t fingerprint = 0;  // as an evaluation adds it up
  for (std::int64_t sample = 0; sample < held_out.size(); ++sample) {
    fingerprint = mix(fingerprint, held_out.fingerprint(sample));
  }
  TRIREME_CHECK(
      earlier.evaluation.fingerprint == 0 || earlier.evaluation.fingerprint == fingerprint,
      "data: fold ",
      fold + 1,
      ", which had ended, was evaluated on other samples than those of \"",
      data,
      "\": use the same data, or another folder for the run (--run)");
  TRIREME_CHECK(earlier.sum_group == 0 || earlier.sum_group == ranks.sum_group(),
                "sum_group: fold ",
                fold + 1,
                ", which had ended, was computed with sums of groups of ",
                earlier.sum_group,
                earlier.sum_group == 1 ? " rank" : " ranks",
                ", found ",
                ranks.sum_group(),
                ", which changes the last bits of the result: use --sum-group ",
                earlier.sum_group);
}

}  // namespace

std::vector<TrainResult> cross_validate(
    const TrainSettings& settings,
    const std::shared_ptr<const Dataset>& all,
    const std::function<std::shared_ptr<TrainObserver>(int fold, const Trainable& model)>&
        observer_of,
    const std::shared_ptr<World>& world,
    const std::function<bool()>& stop,
    const std::function<void(const TrainResult& fold)>& done,
    const EarlierFolds& earlier) {
  std::vector<TrainResult> results;
  const auto folds = static_cast<int>(settings.folds);
  for (int fold = 0; fold < folds; ++fold) {
    const Parts divided = fold_of(all, fold, folds, mix(settings.seed, 0x666f6c6473u));  // "folds"
    const auto ended = earlier.result_of ? earlier.result_of(fold) : std::nullopt;
    if (ended) {
      check_earlier(fold, *ended, *divided.held_out, settings.data, *world);
      results.push_back(*ended);
      continue;
    }
    const Parts parts = prepared(settings, divided, *world);
    const Trainable model = make_model(settings, parts.train->shape());
    const std::shared_ptr<TrainObserver> observer = observer_of(fold, model);
    results.push_back(
        train(settings,
              model,
              parts,
              world,
              observer.get(),
              stop,
              earlier.checkpoints_of ? earlier.checkpoints_of(fold) : TrainCheckpoints{}));
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
