#include "trireme/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/durable.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::errno_text;

constexpr const char* kFolderPrefix = "step-";
constexpr std::size_t kStepDigits = 8;  // at least, so that names sort like numbers
constexpr const char* kLatest = "latest";
constexpr const char* kRemoved = ".removed-";
constexpr const char* kReplaced = ".replaced-";
constexpr const char* kBest = ".best-";  // of a training: the best weights up to a checkpoint

// A manifest's sequence number, from its first lines; -1 where it has none.
std::int64_t sequence_in(const std::string& checkpoint) {
  std::ifstream file(checkpoint + "/" + Manifest::kFileName, std::ios::binary);
  std::string text(512, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const std::string key = "\n\"sequence\": ";
  const std::size_t at = text.find(key);
  std::int64_t value = -1;
  if (at != std::string::npos) {
    std::from_chars(text.data() + at + key.size(), text.data() + text.size(), value);
  }
  return value;
}

// What `latest` says: a checkpoint, and the last sequence number that was there when it was
// written. Later ones are newer, whatever it names.
struct Latest {
  std::int64_t step = -1;
  std::int64_t sequence = -1;
};

Latest read_latest(const std::string& folder) {
  std::ifstream file(folder + "/" + kLatest);
  std::string name;
  Latest latest;
  if (file >> name >> latest.sequence) {
    latest.step = CheckpointFolder::step_of(name).value_or(-1);
  }
  return latest;
}

}  // namespace

std::string CheckpointFolder::name_of(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kStepDigits) {
    digits.insert(0, kStepDigits - digits.size(), '0');
  }
  return kFolderPrefix + digits;
}

std::optional<std::int64_t> CheckpointFolder::step_of(const std::string& name) {
  std::int64_t step = 0;
  const std::string prefix = kFolderPrefix;
  if (name.rfind(prefix, 0) != 0) {
    return std::nullopt;
  }
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + prefix.size(), end, step);
  if (result.ec != std::errc() || result.ptr != end || name_of(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  return path_ + "/" + name_of(step);
}

bool CheckpointFolder::contains(std::int64_t step) const {
  // Not whether it is whole: one that has lost its manifest is damaged, and whoever wants it has to
  // hear of that instead of getting an older one.
  std::error_code error;
  return fs::is_directory(path_of(step), error);
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> found;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    if (step && contains(*step)) {
      found.push_back(*step);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError(
        path_, -1, concat("the folder \"", path_, "\" could not be read: ", error.message()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::int64_t CheckpointFolder::last_sequence() const {
  std::int64_t last = std::max<std::int64_t>(read_latest(path_).sequence, 0);
  for (const std::int64_t step : steps()) {
    last = std::max(last, sequence_in(path_of(step)));
  }
  return last;
}

std::optional<std::int64_t> CheckpointFolder::newest() const {
  const Latest latest = read_latest(path_);
  std::optional<std::int64_t> newest;
  std::int64_t last = -1;
  if (latest.step >= 0 && contains(latest.step)) {
    newest = latest.step;
    last = latest.sequence;
  }
  for (const std::int64_t step : steps()) {
    const std::int64_t sequence = sequence_in(path_of(step));
    if (sequence > last || !newest) {
      newest = step;
      last = sequence;
    }
  }
  return newest;
}

void CheckpointFolder::set_latest(std::int64_t step) const {
  const std::string text = concat(name_of(step), " ", last_sequence(), "\n");
  detail::write_durably(path_ + "/" + kLatest, text);
}

void CheckpointFolder::publish(const std::string& finished, std::int64_t step) const {
  const std::string target = path_of(step);
  std::error_code error;
  if (fs::exists(target, error)) {
    // Both names exist at every moment.
    if (renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      detail::sync_folder(path_);
      fs::remove_all(finished, error);  // the old one, which is the last to go
      return;
    }
  }
  // On a file system that cannot exchange names (NFS) the old one goes aside for a moment, under a
  // name that whoever comes after a kill puts back.
  const auto aside = set_aside(step, kReplaced);
  if (std::rename(finished.c_str(), target.c_str()) != 0) {
    const int reason = errno;
    if (aside) {
      std::rename(aside->c_str(), target.c_str());
    }
    throw CheckpointError(
        target, -1, concat("\"", finished, "\" could not be renamed: ", errno_text(reason)));
  }
  detail::sync_folder(path_);
  if (aside) {
    fs::remove_all(*aside, error);
  }
}

// Gives a checkpoint a name that nobody lists, which is returned; nothing where it is not there.
// What it holds must stay until that is on disk: otherwise a loss of power may leave the name of
// before with half of it.
std::optional<std::string> CheckpointFolder::set_aside(std::int64_t step,
                                                       const char* prefix) const {
  const std::string target = path_of(step);
  std::string aside = concat(path_, "/", prefix, name_of(step), "-", getpid());
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) {
    return std::nullopt;  // what is aside already is all there is
  }
  fs::remove_all(aside, error);
  if (std::rename(target.c_str(), aside.c_str()) == 0) {
    return aside;
  }
  if (errno != ENOENT) {  // else somebody was faster
    throw CheckpointError(
        target, -1, concat("\"", target, "\" could not be removed: ", errno_text(errno)));
  }
  return std::nullopt;
}

void CheckpointFolder::remove(std::int64_t step) const {
  remove_all({step});
}

void CheckpointFolder::remove_all(const std::vector<std::int64_t>& steps) const {
  std::vector<std::string> aside;
  for (const std::int64_t step : steps) {
    if (auto path = set_aside(step, kRemoved)) {
      aside.push_back(std::move(*path));
    }
  }
  if (aside.empty()) {
    return;
  }
  detail::sync_folder(path_);
  std::error_code error;
  for (const std::string& path : aside) {
    fs::remove_all(path, error);
  }
}

std::vector<std::int64_t> CheckpointFolder::superfluous(const Retention& retention,
                                                        std::int64_t kept) const {
  std::vector<std::int64_t> found;
  if (retention.keep_last <= 0) {
    return found;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> by_age;  // sequence, step
  for (const std::int64_t step : steps()) {
    by_age.emplace_back(sequence_in(path_of(step)), step);
  }
  std::sort(by_age.rbegin(), by_age.rend());
  // A run that was resumed from an earlier step has given up what came after it: of no use to
  // whoever resumes the newest one, so it is the first to go.
  const std::int64_t newest_step = by_age.empty() ? 0 : by_age.front().second;
  std::stable_partition(
      by_age.begin(), by_age.end(), [&](const auto& each) { return each.second <= newest_step; });
  for (std::size_t i = static_cast<std::size_t>(retention.keep_last); i < by_age.size(); ++i) {
    const std::int64_t step = by_age[i].second;
    const bool marked = retention.keep_every > 0 && step % retention.keep_every == 0;
    if (step != kept && !marked) {
      found.push_back(step);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::int64_t> CheckpointFolder::prune(const Retention& retention,
                                                  std::int64_t kept) const {
  std::vector<std::int64_t> removed = superfluous(retention, kept);
  remove_all(removed);
  return removed;
}

std::vector<std::string> CheckpointFolder::unfinished() const {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(".step-", 0) == 0 || name.rfind(kRemoved, 0) == 0 ||
        name.rfind(".latest-", 0) == 0) {
      found.push_back(name);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// What in the folder has a name that begins with `prefix`, without it.
std::vector<std::string> CheckpointFolder::names_after(const std::string& prefix) const {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(prefix)) {
      found.push_back(name.substr(prefix.size()));
    }
  }
  return found;
}

void CheckpointFolder::put_back_replaced() const {
  for (const std::string& name : names_after(kReplaced)) {
    const auto step = step_of(name.substr(0, name.rfind('-')));
    const std::string aside = concat(path_, "/", kReplaced, name);
    std::error_code error;
    if (step && fs::exists(path_of(*step), error)) {
      detail::sync_folder(path_);  // the new one's name, before the old one goes
      fs::remove_all(aside, error);
    } else if (step && std::rename(aside.c_str(), path_of(*step).c_str()) == 0) {
      detail::sync_folder(path_);
    }
  }
}

void CheckpointFolder::remove_unfinished() const {
  put_back_replaced();
  std::error_code error;
  for (const std::string& name : unfinished()) {
    fs::remove_all(fs::path(path_) / name, error);
  }
  // Not where a checkpoint is removed: a training that goes through a step again, which it had
  // given up, may have kept the weights already that belong to the new one.
  for (const std::string& name : names_after(kBest)) {
    const auto step = step_of(name);
    if (step && !contains(*step)) {
      fs::remove(concat(path_, "/", kBest, name), error);
    }
  }
}

}  // namespace trireme
