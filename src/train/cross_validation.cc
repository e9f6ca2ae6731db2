#include "train/rank_changes.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

Parts part_of(const TrainSettings& settings, const std::shared_ptr<const Dataset>& all, int fold) {
  return fold_of(
      all, fold, static_cast<int>(settings.folds), mix(settings.seed, 0x666f6c6473u));  // "folds"
}

// Of every sample: each fold trains on those that it does not hold out. The ranks share the
// reading; a sum tells nothing of who has read what, so that it is the same for any number of them.
std::uint64_t fingerprint_of_all(const TrainSettings& settings,
                                 const std::shared_ptr<const Dataset>& all,
                                 Communicator& ranks) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 48) - 1;  // no sum over ranks overflows
  std::uint64_t own = 0;
  for (int fold = 0; fold < static_cast<int>(settings.folds); ++fold) {
    const Parts divided = part_of(settings, all, fold);
    const Dataset& held_out = *divided.held_out;
    const std::uint64_t of_fold = mix(0, fold);
    for (std::int64_t sample = ranks.rank(); sample < held_out.size(); sample += ranks.size()) {
      own += mix(mix(of_fold, sample), held_out.fingerprint(sample));
    }
  }
  std::vector<std::int64_t> sum = {static_cast<std::int64_t>(own & kMask)};
  ranks.all_reduce(sum).wait();
  const std::uint64_t fingerprint = static_cast<std::uint64_t>(sum.front()) & kMask;
  return fingerprint == 0 ? 1 : fingerprint;  // 0 means that nobody has looked
}

// Folds from before there was a fingerprint of all data tell what they were evaluated on, at least.
bool on_the_same_data(const TrainResult& earlier,
                      std::uint64_t data_fingerprint,
                      const Dataset& held_out) {
  if (earlier.data_fingerprint != 0) {
    return earlier.data_fingerprint == data_fingerprint;
  }
  std::uint64_t evaluated = 0;  // as an evaluation adds it up
  for (std::int64_t sample = 0; sample < held_out.size(); ++sample) {
    evaluated = mix(evaluated, held_out.fingerprint(sample));
  }
  return earlier.evaluation.fingerprint == 0 || earlier.evaluation.fingerprint == evaluated;
}

// A fold that had ended is one of the same cross-validation, which only the samples can tell, and
// has the bits that it would have here.
void check_earlier(int fold,
                   const TrainResult& earlier,
                   std::uint64_t data_fingerprint,
                   const Dataset& held_out,
                   const std::string& data,
                   const Communicator& ranks) {
  TRIREME_CHECK(
      on_the_same_data(earlier, data_fingerprint, held_out),
      "data: fold {}, which is already finished, was trained or evaluated on other samples than "
      "those of "
      "\"{}\", which has changed: use the same data, or another folder for the run (--run)",
      {fold + 1, data});
  TRIREME_CHECK(
      earlier.sum_group == 0 || earlier.sum_group == ranks.sum_group(),
      "sum_group: fold {}, which is already finished, was computed with sums of groups of {}, "
      "found {}, "
      "which changes the last bits of the result: use --sum-group {}",
      {fold + 1, detail::counted(earlier.sum_group, "rank"), ranks.sum_group(), earlier.sum_group});
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
  const std::uint64_t data_fingerprint = fingerprint_of_all(settings, all, *world);
  for (int fold = 0; fold < folds; ++fold) {
    const Parts divided = part_of(settings, all, fold);
    const auto ended = earlier.result_of ? earlier.result_of(fold) : std::nullopt;
    if (ended) {
      check_earlier(fold, *ended, data_fingerprint, *divided.held_out, settings.data, *world);
      results.push_back(*ended);
      continue;
    }
    detail::begin_fold(fold);
    const Parts parts = prepared(settings, divided, *world);
    const Trainable model = make_model(settings, parts.train->shape(), *world);
    const std::shared_ptr<TrainObserver> observer = observer_of(fold, model);
    results.push_back(
        train(settings,
              model,
              parts,
              world,
              observer.get(),
              stop,
              earlier.checkpoints_of ? earlier.checkpoints_of(fold) : TrainCheckpoints{}));
    results.back().data_fingerprint = data_fingerprint;
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
