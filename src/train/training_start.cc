// How a training begins: anew, after a checkpoint, or with what its ranks have kept in memory.

#include "train/note_names.h"
#include "train/rank_changes.h"
#include "train/starting_weights.h"
#include "train/steps_by_ranks.h"
#include "train/trained_settings.h"
#include "train/training.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/shell_text.h"
#include "trireme/settings/settings_table.h"

namespace trireme::detail {

void Training::begin() {
  if (begin_with_memory()) {
    return;
  }
  if (!checkpoints_.resumed_step()) {
    if (!settings_.weights_from.empty()) {
      begin_with_weights(
          settings_, *judged_.module, runner_.resumable(), [this](const std::string& text) {
            say(text);
          });
    }
    runner_.begin();
    changes_.begin();
    if (leads()) {
      TrainBeginning beginning;
      beginning.data = &data_;
      observer_->begins(beginning);
    }
    if (settings_.save_initial) {
      keep_weights("initial");
    }
    return;
  }
  const RunCheckpoints::Loaded loaded = checkpoints_.load(runner_.resumable());
  go_on(loaded.progress);
  checkpoints_.take_up();
  begin_after(loaded.path, loaded.ranks, loaded.settings);
}

// With what ranks that were lost, or have lost others, had kept: no step is computed again but the
// one in which it happened.
bool Training::begin_with_memory() {
  if (vault_ == nullptr || !vault_->newest() ||
      vault_->newest()->step < checkpoints_.resumed_step().value_or(0)) {
    return false;
  }
  const Vault::Version kept = *vault_->newest();
  runner_.resumable().restore([&](const StateView& into) { vault_->load(into); },
                              kept.notes.at(kEngineNote));
  go_on(TrainProgress::parse(kept.notes.at(kProgressNote), "the memory that the launcher keeps"));
  const EngineState state = runner_.state_to_keep();
  vault_->keep_loaded(state.view);
  begin_after("the state in memory", kept.ranks, "");
  return true;
}

void Training::begin_after(const std::string& what, int ranks, const std::string& settings) {
  if (progress_.step > 0 && progress_.steps_by_ranks.empty() && progress_.rank_changes.times == 0) {
    append_steps(progress_.steps_by_ranks, {1, progress_.step, ranks});  // of an older version
  }
  const bool trains = !is_over();
  changes_.go_on(progress_);
  const bool same_job = launcher_keeps_memory() && world_->epoch() > 0;
  if (!changes_.is_of_this_job() && ranks != world_->size() && trains) {
    changes_.meet_anew(ranks, world_->size());
  }
  std::optional<TrainSettings> trained_with;
  if (!trains && !settings.empty()) {
    trained_with = settings_as_trained(settings, settings_);
    if (!progress_.steps_by_ranks.empty()) {
      trained_with->ranks = progress_.steps_by_ranks.back().ranks;
    }
    checkpoints_.keep_settings(*trained_with);
  }
  if (leads()) {
    observer_->begins({.step = progress_.step,
                       .evaluated = progress_.evaluated_step == progress_.step,
                       .best_step = progress_.best_step,
                       .checkpoint = what,
                       .ranks = ranks,
                       .same_job = same_job,
                       .data = &data_,
                       .trained_with = trained_with});
  }
  say(concat("resuming after step {} with {}, saved by {}",
             {progress_.step, what, counted(ranks, "rank")}));
  // One that was interrupted has not waited for its evaluation.
  if (is_due() && progress_.evaluated_step != runner_.next_step()) {
    evaluate_now();  // interrupted: the first step notices it, too
  }
  say_what_is_left();
}

void Training::say_what_is_left() {
  if (runner_.next_step() < runner_.steps() || settings_.folds > 0) {
    return;
  }
  say(concat(
      runner_.steps() == 1 ? "the only step is" : concat("all ", runner_.steps(), " steps are"),
      " done: nothing is left to train",
      how_to_train_longer(settings_.steps > 0 ? "--steps N" : "--epochs N")));
}

std::string Training::how_to_train_longer(const std::string& flags) const {
  if (settings_.save_every == 0 && !checkpoints_.resumed_step()) {
    return "";  // it goes on with what is in memory: there will be nothing to resume from
  }
  return concat(
      "; to train longer: {}{} --allow-changes",
      {settings_.run.empty() ? ""
                             : concat("trireme train --resume {} ", {shell_text({settings_.run})}),
       flags});
}

void Training::go_on(const TrainProgress& saved) {
  TRIREME_CHECK(
      settings_.allow_changes || (saved.training_samples == progress_.training_samples &&
                                  saved.held_out_samples == progress_.held_out_samples),
      "data: the checkpoint was trained on {} and evaluated on {}, found {} and {}: use the same "
      "data, or --allow-changes",
      {counted(saved.training_samples, "sample"),
       saved.held_out_samples,
       progress_.training_samples,
       progress_.held_out_samples});
  TRIREME_CHECK(settings_.allow_changes || saved.data_fingerprint == 0 ||
                    saved.data_fingerprint == progress_.data_fingerprint,
                "data: the checkpoint was trained on samples other than those of \"",
                settings_.data,
                "\", although their number is the same: use the same data, or --allow-changes");
  TRIREME_CHECK(
      settings_.allow_changes || saved.sum_group == 0 || saved.sum_group == progress_.sum_group,
      "sum_group: the checkpoint was computed with sums of groups of {}, found {}, which changes "
      "the last bits of the result: use --sum-group {}, or --allow-changes",
      {counted(saved.sum_group, "rank"), progress_.sum_group, saved.sum_group});
  TRIREME_CHECK(settings_.allow_changes || saved.threads == progress_.threads,
                "threads: the checkpoint was computed with {} per rank, found {}, which changes "
                "the last bits of the result: use --threads {}, or --allow-changes",
                {saved.threads, progress_.threads, saved.threads});
  TRIREME_CHECK(saved.best.empty() || saved.best.count(settings_.best) > 0,
                "best: the checkpoint has no ",
                settings_.best,
                " of its best evaluation: its note \"train\" is damaged");
  if (saved.training_samples != progress_.training_samples ||
      saved.held_out_samples != progress_.held_out_samples ||
      (saved.data_fingerprint != 0 && saved.data_fingerprint != progress_.data_fingerprint)) {
    say(
        concat("warning: the checkpoint was trained on other samples than those of \"{}\" "
               "(--allow-changes)",
               {settings_.data}));
  }
  const TrainProgress here = progress_;
  progress_ = saved;
  progress_.training_samples = here.training_samples;
  progress_.held_out_samples = here.held_out_samples;
  progress_.threads = here.threads;
  progress_.sum_group = here.sum_group;
  progress_.data_fingerprint = here.data_fingerprint;
  runner_.go_on(progress_);
  first_step_ = progress_.step;
  first_seconds_ = progress_.seconds;
  plateau_.restore(progress_.plateau);
  runner_.engine().set_learning_rate(runner_.base_rate() * plateau_.factor());
  result_.evaluation.metrics = progress_.evaluation;
}

}  // namespace trireme::detail
