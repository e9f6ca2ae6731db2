#include "train/continued_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/train/preprocessing_file.h"
#include "trireme/train/run_recorder.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kPrefix = ".best-";

// Calls take(line) for each whole line, until it says no. Returns the bytes of those it took.
template <class Take>
std::uint64_t take_lines(const std::string& path, const Take& take) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t bytes = 0;
  // Where a line has no end, there is no more after it, and the file is at its own.
  for (std::string line; std::getline(file, line) && !file.eof() && take(line);) {
    bytes += line.size() + 1;
  }
  return bytes;
}

void give_name(const std::string& file, const std::string& name) {
  std::error_code error;
  fs::create_hard_link(file, name, error);
  if (error) {  // a file system that has none
    fs::copy_file(file, name, error);
  }
  if (error) {
    throw Error(concat("\"", name, "\" could not be written: ", error.message()));
  }
}

}  // namespace

KeptLines kept_metrics(const std::string& path, std::int64_t step, bool evaluated) {
  KeptLines kept;
  std::uint64_t bytes = 0;  // up to the line at hand
  std::int64_t number = 0;
  std::int64_t damaged = 0;
  take_lines(path, [&](const std::string& text) {
    bytes += text.size() + 1;
    ++number;
    const Json line =
        json_too_deep_at(text) ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      damaged = damaged == 0 ? number : damaged;
      return true;  // good ones may follow
    }
    const auto of = line["step"].get<std::int64_t>();
    if (of > step || (of == step && line.contains("eval") && !evaluated)) {
      return false;
    }
    kept = {bytes, of, damaged};
    return true;
  });
  return kept;
}

KeptLines kept_samples(const std::string& path, std::int64_t step) {
  KeptLines kept;
  kept.bytes =
      take_lines(path, [&](const std::string&) { return kept.steps < step && ++kept.steps > 0; });
  return kept;
}

std::uint64_t kept_log(const std::string& path) {
  return take_lines(path, [](const std::string&) { return true; });
}

void remove_partial_files(const std::string& folder) {
  constexpr const char* kOwn[] = {"best.safetensors",
                                  "model.safetensors",
                                  "average.safetensors",
                                  "initial.safetensors",
                                  "config.json",
                                  "classes.json",
                                  kPreprocessingFile,
                                  "evaluation.csv",
                                  "summary.json"};
  constexpr std::string_view kPartial = ".partial";  // and the process's number
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), last; !error && it != last;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::size_t end = std::min(name.rfind(kPartial), name.size());
    const bool own =
        std::find(std::begin(kOwn), std::end(kOwn), name.substr(0, end)) != std::end(kOwn);
    if (own && name.find_first_not_of("-0123456789", end + kPartial.size()) == std::string::npos &&
        end < name.size()) {
      found.push_back(it->path());
    }
  }
  for (const std::filesystem::path& each : found) {
    std::filesystem::remove(each, error);
  }
}

BestWeights::BestWeights(std::string run)
    : file_(run + "/best.safetensors"), folder_(run + "/" + kCheckpointsFolder) {}

std::string BestWeights::name_of(std::int64_t step) const {
  return folder_ + "/" + kPrefix + CheckpointFolder::name_of(step);
}

void BestWeights::forget() const {
  const CheckpointFolder checkpoints(folder_);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix)) {
      const auto of = CheckpointFolder::step_of(name.substr(std::string(kPrefix).size()));
      if (of && *of != last_ && !checkpoints.contains(*of)) {
        fs::remove(entry.path(), error);
      }
    }
  }
}

void BestWeights::keep_with(std::int64_t step) {
  forget();
  last_ = step;
  std::error_code error;
  fs::remove(name_of(step), error);
  if (fs::exists(file_, error)) {
    give_name(file_, name_of(step));
  }
}

void BestWeights::put_back(std::int64_t step, bool had_one) const {
  std::error_code error;
  if (!had_one) {
    fs::remove(file_, error);
    return;
  }
  const std::string kept = name_of(step);
  if (!fs::exists(kept, error) || fs::equivalent(kept, file_, error)) {
    return;
  }
  const std::string fresh = file_ + ".partial";
  fs::remove(fresh, error);
  give_name(kept, fresh);
  fs::rename(fresh, file_, error);
  if (error) {
    throw Error(concat("\"", file_, "\" could not be written: ", error.message()));
  }
}

}  // namespace trireme::detail
