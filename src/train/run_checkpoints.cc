#include "train/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "train/note_names.h"
#include "trireme/archive/torch_archive.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme::detail {
namespace {

std::string list_of(const std::vector<std::int64_t>& steps) {
  std::string text;
  for (const std::int64_t step : steps) {
    text += concat(text.empty() ? "" : ", ", step);
  }
  return text;
}

// As far as can be seen without reading all of it.
bool is_complete(const std::string& checkpoint) {
  try {
    const Manifest manifest = Manifest::read(checkpoint);
    return std::ranges::all_of(manifest.files, [&](const SavedFile& file) {
      std::error_code error;
      return std::filesystem::file_size(checkpoint + "/" + file.name, error) == file.size_bytes;
    });
  } catch (const CheckpointError&) {
    return false;
  }
}

const std::string& note_of(const Manifest& manifest, const char* name, const std::string& path) {
  const auto found = manifest.notes.find(name);
  if (found == manifest.notes.end()) {
    throw CheckpointError(
        path,
        -1,
        concat("\"{}\": expected the note \"{}\" of a training loop, found none: it was saved by "
               "another program; weights_from can load its weights",
               {path, name}));
  }
  return found->second;
}

std::optional<std::int64_t> choose_step(const TrainCheckpoints& where,
                                        const CheckpointFolder& folder) {
  const std::vector<std::int64_t> steps = folder.steps();
  if (where.step) {
    TRIREME_CHECK(folder.contains(*where.step),
                  "\"{}\": expected a checkpoint of step {}, found {}",
                  {folder.path(), *where.step, steps.empty() ? "none at all" : list_of(steps)});
    return where.step;
  }
  TRIREME_CHECK(where.resume || steps.empty(),
                "\"{}\" holds checkpoints of another run, of steps {}: resume from one of them, "
                "choose another folder, or remove them",
                {folder.path(), list_of(steps)});
  return folder.newest();
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainSettings& settings,
                               const TrainCheckpoints& where,
                               const torch::nn::Module& module,
                               std::shared_ptr<World> world,
                               TrainObserver* observer)
    : settings_(settings), world_(std::move(world)), observer_(observer) {
  if (where.folder.empty()) {
    TRIREME_CHECK(settings.save_every == 0 && !where.step,
                  "save_every: expected a folder for checkpoints, found none");
    return;
  }
  CheckpointOptions options;
  options.retention = {.keep_last = settings.keep_last, .keep_every = settings.keep_every};
  // States that were put on a disk because memory is short are not to be there whole for a copy.
  constexpr std::int64_t kBesideADisk = std::int64_t{64} << 20;
  const std::int64_t automatic = settings.offload.starts_with("disk:") ? kBesideADisk : 0;
  options.snapshot_bytes =
      static_cast<std::size_t>(snapshot_limit_bytes(settings.snapshot_limit).value_or(automatic));
  options.say = [this](const std::string& text) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(text);
  };
  if (observer_ != nullptr) {
    options.before_publish = [this] { observer_->settle(); };
  }
  module_notes_ = module_notes(module);
  folder_.emplace(where.folder, world_, options);
  // Rank 0 looks: another's view of a shared file system may be older.
  std::vector<std::int64_t> chosen = {-1};
  on_all_ranks(*world_, [&] {
    if (world_->rank() == 0) {
      chosen[0] = choose_step(where, folder_->folder()).value_or(-1);
    }
  });
  world_->broadcast(chosen, 0).wait();
  if (chosen[0] >= 0) {
    step_ = chosen[0];
  }
}

// What can be done about one that is damaged.
std::string RunCheckpoints::other_steps() const {
  std::vector<std::int64_t> others;
  for (const std::int64_t step : folder_->folder().steps()) {
    if (step != *step_ && is_complete(folder_->folder().path_of(step))) {
      others.push_back(step);
    }
  }
  return others.empty()
             ? "there is no other checkpoint to resume from"
             : concat("--resume STEP resumes from another one, of step ", list_of(others));
}

Resumed RunCheckpoints::resume(Resumable& engine) {
  try {
    return load_checkpoint(folder_->folder().path_of(*step_), engine);
  } catch (const ConfigError& error) {
    throw ConfigError(concat(
        error.what(),
        "\n"
        "The model, the optimizer or the replicas are different: --weights-from starts a new "
        "run with the weights alone"));
  }
}

RunCheckpoints::Loaded RunCheckpoints::load(Resumable& engine) {
  Loaded loaded;
  loaded.path = folder_->folder().path_of(*step_);
  const std::string file = loaded.path + "/" + Manifest::kFileName;
  try {
    on_all_ranks(*world_, [&] {
      const Manifest manifest = Manifest::read(loaded.path);
      loaded.settings = note_of(manifest, kSettingsNote, file);
      const auto changes = check_same_result(loaded.settings, settings_, *step_);
      loaded.progress = TrainProgress::parse(note_of(manifest, kProgressNote, file), file);
      for (const SettingDifference& change : changes) {
        if (change.name == "micro_batch") {
          loaded.progress.micro_batch = 0;
        }
      }
      if (!changes.empty()) {
        say(concat("resuming with settings that differ from before:\n", to_string(changes)));
      }
    });
    loaded.ranks = resume(engine).ranks;
  } catch (const CheckpointError& error) {
    // What is wrong with another file (a full disk) is no reason to take another checkpoint.
    const bool of_this = error.file().starts_with(loaded.path);
    throw CheckpointError(error.file(),
                          error.offset(),
                          concat(error.what(), of_this ? "; " : "", of_this ? other_steps() : ""));
  }
  saved_step_ = loaded.progress.step;
  saved_evaluated_step_ = loaded.progress.evaluated_step;
  return loaded;
}

void RunCheckpoints::take_up() {
  on_all_ranks(*world_, [&] {
    if (world_->rank() == 0) {
      folder_->folder().set_latest(*step_);  // later ones are of a future that was given up
    }
  });
}

double RunCheckpoints::save(Resumable& engine, const TrainProgress& progress) {
  // Again where it was evaluated since: one that was interrupted in its last evaluation and
  // resumed.
  if (saved_step_ == progress.step && saved_evaluated_step_ == progress.evaluated_step) {
    return 0;
  }
  saved_step_ = progress.step;
  saved_evaluated_step_ = progress.evaluated_step;
  if (observer_ != nullptr) {
    observer_->saves(progress.step);
  }
  Notes notes = module_notes_;
  notes[kProgressNote] = progress.to_json();
  notes[kSettingsNote] = to_json(trained_with_.value_or(settings_));
  const SaveReport report = folder_->save(engine, notes, progress.step);
  say_waiting();
  return report.copy_seconds + report.disk_seconds;
}

void RunCheckpoints::say(const std::string& text) const {
  if (observer_ != nullptr) {
    observer_->message(text);
  }
}

void RunCheckpoints::say_waiting() {
  std::vector<std::string> texts;
  {
    const std::lock_guard lock(mutex_);
    texts.swap(waiting_);
  }
  for (const std::string& text : texts) {
    say(text);
  }
}

std::string RunCheckpoints::failure() {
  if (!folder_) {
    return {};
  }
  say_waiting();
  return folder_->failure();
}

void RunCheckpoints::finish() {
  folder_->finish();
  say_waiting();
}

}  // namespace trireme::detail
