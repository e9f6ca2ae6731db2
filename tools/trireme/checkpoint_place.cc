#include "checkpoint_place.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using detail::concat;

constexpr const char* kCheckpoints = "checkpoints";

// Without a slash at the end.
fs::path plain(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Every file system answers these or is not there: what is wrong is said by who needs the file.
bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string steps_text(const std::vector<std::int64_t>& steps) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (std::size_t i = 0; i < steps.size() && i < kMost; ++i) {
    text += concat(i > 0 ? ", " : "", steps[i]);
  }
  return steps.size() > kMost ? concat(text, " and ", steps.size() - kMost, " more") : text;
}

}  // namespace

bool is_weights_file(const std::string& path) {
  return is_file(path);
}

bool is_checkpoint(const std::string& path) {
  return is_folder(path) && (is_file(fs::path(path) / Manifest::kFileName) ||
                             CheckpointFolder::step_of(plain(path).filename().string()));
}

std::string checkpoints_of(const std::string& path) {
  TRIREME_CHECK(is_folder(path),
                "expected the folder of a run or of checkpoints, found {} at \"{}\"",
                {is_file(path) ? "a file" : "nothing", path});
  const fs::path inside = fs::path(path) / kCheckpoints;
  std::string folder = is_folder(inside) ? inside.string() : plain(path).string();
  if (!CheckpointFolder(folder).steps().empty()) {
    return folder;
  }
  std::string hint;
  if (is_checkpoint(path)) {
    hint = concat("; this is a single one: name the folder that it is in, \"",
                  plain(fs::absolute(path).string()).parent_path().string(),
                  "\"");
  } else if (is_folder(fs::path(path) / "fold-1")) {
    hint = "; this is a cross-validated run: name one of its folds";
  } else if (is_file(fs::path(path) / "config.json")) {
    hint = "; " + why_no_checkpoint(path);
  }
  if (const fs::path weights = fs::path(path) / "model.safetensors"; is_file(weights)) {
    hint += concat("; the weights at its end are in \"", weights.string(), "\"");
  }
  throw ConfigError(concat("expected checkpoints in \"", folder, "\", found none", hint));
}

std::string why_no_checkpoint_yet(const std::string& run) {
  std::ifstream file(fs::path(run) / "config.json", std::ios::binary);
  const auto config = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto every = config.is_object() && config.contains("save_every") ? config.at("save_every")
                                                                         : nlohmann::json();
  return every.is_number_integer() && every > 0
             ? concat("the run has not reached step ",
                      every.dump(),
                      ", after which it saves the first; if it is no longer running, its original "
                      "command, without --resume, starts it over")
             : "";
}

std::string why_no_checkpoint(const std::string& run) {
  const std::string not_yet = why_no_checkpoint_yet(run);
  return not_yet.empty() ? "a run saves them if it is told to (trireme train --save-every N)"
                         : not_yet;
}

std::string checkpoint_at(const std::string& path, std::optional<std::int64_t> step) {
  if (is_checkpoint(path)) {
    TRIREME_CHECK(
        !step, "--step selects a checkpoint in a run or folder, found a single checkpoint: ", path);
    return plain(path).string();
  }
  const CheckpointFolder folder(checkpoints_of(path));
  if (step) {
    TRIREME_CHECK(folder.contains(*step),
                  "--step: expected a step of \"{}\", which has {}, found {}",
                  {folder.path(), steps_text(folder.steps()), *step});
    return folder.path_of(*step);
  }
  return folder.path_of(folder.newest().value());
}

std::string run_around(const std::string& path) {
  for (fs::path at = plain(fs::absolute(path).string()); at.has_relative_path();
       at = at.parent_path()) {
    if (is_file(at / "config.json")) {
      return at.string();
    }
    const std::string name = at.filename().string();
    const bool inside = is_file(at) || name == kCheckpoints || CheckpointFolder::step_of(name);
    if (!inside) {
      break;
    }
  }
  return {};
}

}  // namespace trireme::tools
