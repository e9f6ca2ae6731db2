#include "trireme/settings/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/printable.h"
#include "trireme/core/shell_text.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;

constexpr const char* kSettingsFile = "config.json";

std::string quoted(const fs::path& path) {
  return concat("\"", detail::printable(path.string()), "\"");
}

// What config.json of a folder has; of one that is no JSON, or not there, something else than an
// object.
nlohmann::json config_in(const fs::path& folder) {
  std::ifstream file(folder / kSettingsFile, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return json_too_deep_at(text) ? nlohmann::json()
                                : nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string what_is_at(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  switch (status.type()) {
    case fs::file_type::not_found:
      return "nothing with this name";
    case fs::file_type::directory: {
      const auto config = config_in(path);
      return !config.is_object()             ? concat("no ", kSettingsFile, " in this folder")
             : config.contains("model_type") ? "a model of Hugging Face"
                                             : concat("a ", kSettingsFile, " without a model");
    }
    case fs::file_type::regular:
      return "a file";
    case fs::file_type::none:
    case fs::file_type::unknown:
      return error ? error.message() : "something that cannot be read";
    default:
      return "something that is neither a folder nor a file";
  }
}

// The run whose folder this is in, as its weights and checkpoints are; empty: none.
fs::path run_around(const fs::path& path) {
  constexpr int kDepth = 4;  // RUN/fold-1/checkpoints/step-00000200/rank-0.safetensors
  fs::path at = path.lexically_normal();
  at = at.has_filename() ? at : at.parent_path();
  for (int i = 0; i < kDepth && at.has_relative_path() && at.filename() != ".."; ++i) {
    at = at.has_parent_path() ? at.parent_path() : fs::path(".");
    if (is_run_folder(at.string())) {
      return at;
    }
    if (at == ".") {
      break;
    }
  }
  return {};
}

// One of the runs in this folder, the last by name, which is the newest of dated ones.
fs::path run_inside(const fs::path& path) {
  std::error_code error;
  fs::path last;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (is_run_folder(it->path().string())) {
      last = std::max(last, it->path());
    }
  }
  return last;
}

std::string what_to_give(const fs::path& path) {
  if (config_in(path).contains("model_type")) {
    return concat("trireme ckpt import {} NEW makes a checkpoint of a GPT-2",
                  {detail::shell_text({path.string()})});
  }
  std::error_code error;
  if (fs::exists(path, error)) {
    if (const fs::path around = run_around(path); !around.empty()) {
      return concat("it belongs to the run in ", quoted(around), ": give that");
    }
  }
  if (const fs::path inside = run_inside(path); !inside.empty()) {
    return concat("give one of the runs in it, such as ", quoted(inside));
  }
  return "trireme train says at its start which folder it writes (--run chooses it)";
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::path(path) / kSettingsFile, error)) {
    return false;
  }
  // Other programs have a file of this name. One that cannot be read may be a run's, damaged.
  const nlohmann::json config = config_in(path);
  return !config.is_object() || config.contains("model");
}

std::string expected_run_folder(const std::string& path) {
  return concat("expected the folder of a run, with the {} that trireme train writes, found {}; {}",
                {kSettingsFile, what_is_at(path), what_to_give(path)});
}

std::string data_path(const std::string& named, const TrainSettings& settings) {
  std::error_code error;
  const fs::path there = fs::path(settings.started_in) / named;
  const bool looks_there = !named.empty() && !settings.started_in.empty() &&
                           fs::path(named).is_relative() && !fs::exists(named, error);
  return looks_there && fs::exists(there, error) ? there.string() : named;
}

void forget_recorded(const std::string& run) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(run, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == "metrics.jsonl" || name == "samples.jsonl" || name == "summary.json" ||
        name == "evaluation.csv" || name == "train.log" || name.starts_with("events.out.")) {
      files.push_back(it->path());
    }
  }
  for (const fs::path& each : files) {
    fs::remove(each, error);
  }
  fs::remove_all(run + kArrivalsFolder, error);
}

}  // namespace trireme
