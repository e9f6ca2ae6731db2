#include "train_checks.h"

#include <filesystem>

#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/data/source.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/unused.h"
#include "trireme/settings/values.h"

namespace trireme::tools {
namespace {

using detail::concat;

// What it would be if nobody had set it. Files that a run has written have every setting, as it was
// resolved: that asks for nothing.
bool is_as_it_comes(const Setting& setting, const TrainSettings& given) {
  TrainSettings without = given;
  setting.set_json(without, setting.default_text);
  try {
    return setting.to_json(resolve(without)) == setting.to_json(given);
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

void check_data(const TrainSettings& settings, bool resumes) {
  const auto check = [&](const char* flag, const std::string& path) {
    const bool relative = std::filesystem::path(path).is_relative();
    const std::string here = std::filesystem::current_path().string();
    const std::string& there = settings.started_in;
    TRIREME_CHECK(path.empty() || data_is_there(data_path(path, settings)),
                  "{}: expected a file or folder, \"fashion-mnist\" or \"licenses\", found nothing "
                  "with the name \"{}\"{}{}",
                  {flag,
                   path,
                   relative ? concat(" in \"", here, "\"") : "",
                   relative && !there.empty() && there != here
                       ? concat(" nor in \"", there, "\", where the run was started")
                       : ""});
  };
  check("--data", settings.data);
  check("--eval-data", settings.eval_data);
  std::error_code error;
  TRIREME_CHECK(settings.weights_from.empty() || resumes ||
                    std::filesystem::exists(settings.weights_from, error),
                "--weights-from: expected the folder of a run or of a checkpoint, or a safetensors "
                "file, found nothing with the name \"",
                settings.weights_from,
                "\"");
  try {
    const std::string format =
        data_format({.path = data_path(settings.data, settings), .format = settings.format});
    const ModelKind& kind = model_kind(settings.model);
    const bool dense = kind.samples == SampleKind::kDense;
    const bool sparse = kind.samples == SampleKind::kSparse;
    const auto check_taken = [&](bool taken, const char* what, const std::string& models) {
      TRIREME_CHECK(taken,
                    "--model: expected {} for the {} \"{}\", found {}, which does not take {}",
                    {models,
                     what,
                     settings.data,
                     settings.model,
                     what == std::string("table") ? "tables" : what});
    };
    if (format == "csv") {
      check_taken((dense && !kind.needs_images) || sparse,
                  "table",
                  concat(models_on(SampleKind::kDense, /*images=*/false),
                         " or ",
                         models_on(SampleKind::kSparse)));
    } else if (format == "libsvm") {
      check_taken(sparse, "sparse rows", models_on(SampleKind::kSparse));
    } else if (format == "idx") {
      check_taken(dense, "images", models_on(SampleKind::kDense));
    } else {
      check_taken(kind.samples == SampleKind::kTokens, "text", models_on(SampleKind::kTokens));
    }
  } catch (const DataError&) {
    return;  // the ranks say what is wrong with the file
  }
}

void check_goes_on(const std::string& run,
                   std::int64_t step,
                   const TrainSettings& before,
                   const TrainSettings& settings) {
  // Of another model, nearly all settings are others, and no flag lets it have these weights.
  TRIREME_CHECK(before.model.empty() || settings.model == before.model,
                "--model: the run in \"{}\" is of the model {}, and is resumed as that: leave it "
                "out, or choose another folder for a run of {} (--run)",
                {run, before.model, settings.model});
  TRIREME_CHECK(
      settings.weights_from == before.weights_from,
      "--weights-from: the run in \"{}\" is resumed with the weights that it has: leave it "
      "out, or choose another folder for a run that begins with these (--run)",
      {run});
  TRIREME_CHECK(settings.folds == 0 || step == kNextFold,
                "--folds: the run in \"{}\" is one training, and a cross-validation does not go on "
                "with it: leave it out, or choose another folder (--run)",
                {run});
}

void remember_folder(TrainSettings& settings) {
  if (data_path(settings.data, settings) == settings.data &&
      data_path(settings.eval_data, settings) == settings.eval_data) {
    settings.started_in = std::filesystem::current_path().string();
  }
}

std::string known_format(const TrainSettings& settings) {
  try {
    return data_format({.path = data_path(settings.data, settings), .format = settings.format});
  } catch (const DataError&) {
    return "auto";  // check_data, or the ranks, say what is wrong with the data
  }
}

void check_effects(const TrainSettings& given,
                   const std::set<std::string>& typed,
                   const std::string& config,
                   TrainSettings resolved) {
  resolved.format = known_format(resolved);
  for (const Setting& setting : settings_table()) {
    const std::string value = setting.to_json(given);
    const std::string why = value == setting.default_text ? "" : why_unused(setting.name, resolved);
    if (why.empty()) {
      continue;
    }
    if (typed.contains(setting.name)) {
      throw ConfigError(concat(setting.name, ": found ", value, ", which has no effect: ", why));
    }
    if (!config.empty() && !is_as_it_comes(setting, given)) {
      log(LogLevel::kWarning,
          concat(config, ": ", setting.name, " is ", value, ", which has no effect: ", why));
    }
  }
}

void check_elastic(const TrainSettings& settings, const LaunchOptions& options) {
  if (!options.elastic) {
    return;
  }
  if (options.elastic->least == options.elastic->most) {
    return;  // as many ranks as before
  }
  TRIREME_CHECK(settings.sync == Synchronisation::kExact,
                "--elastic: with --sync {} the number of {} is part of the algorithm, and a "
                "loss would change it: use --sync exact, or keep the number (--restart N alone)",
                {value_text("sync", settings), trains_stale(settings) ? "ranks" : "replicas"});
  TRIREME_CHECK(
      settings.allow_changes || (settings.sum_order != SumOrder::kLocalFirst &&
                                 settings.lr_scaling == WorldScaling::kNone),
      "--elastic: with {} the result depends on the number of ranks, which a loss "
      "changes: leave it out, keep the number (--restart N alone), or --allow-changes",
      {settings.sum_order == SumOrder::kLocalFirst ? "--sum-order local_first" : "--lr-scaling"});
  TRIREME_CHECK(settings.speeds.empty(),
                "--elastic: --speeds names a speed for each of {} ranks, and a loss changes their "
                "number: leave it out",
                {settings.ranks});
}

void check_replay(const TrainSettings& settings, bool knows_ranks) {
  if (!settings.replay.empty() && knows_ranks) {
    check_same_replay(settings);
  }
}

void check_drill(const TrainSettings& settings, const LaunchOptions& options) {
  if (!options.drill) {
    return;
  }
  const DrillPlan plan = DrillPlan::parse(options.drill->plan, options.drill->seed);
  TRIREME_CHECK(!plan.has(DrillKind::kDiskFull) || settings.save_every > 0,
                "--drill: disk-full is a fault of saves; expected --save-every N, found none");
}

void check_supervised(const TrainSettings& given,
                      const std::string& run,
                      const ResumeFlag& resume,
                      const std::string& launcher) {
  TRIREME_CHECK(launcher.empty(),
                "--supervise: {} has started the ranks, so it is {} that can start them again: "
                "leave it out",
                {launcher, launcher});
  TRIREME_CHECK(!run.empty(),
                "--supervise: expected --run FOLDER, by which the run is found again, found none");
  TRIREME_CHECK(!resume.given || resume.value.empty() || resume.run(),
                "--supervise: a run that is started again resumes from its newest checkpoint; "
                "expected --resume RUN or none, found --resume {}",
                {resume.value});
  TRIREME_CHECK(resume.given || given.save_every > 0 || given.folds > 0,
                "--supervise: expected --save-every N, for something to resume from, found none");
}

}  // namespace trireme::tools
