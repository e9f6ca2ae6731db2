#include "trireme/core/partial_file.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::errno_text;

constexpr std::string_view kMark = ".partial-";  // and the process's number

// What a handler of signals can read: memory that nobody allocates.
struct Slot {
  std::atomic<pid_t> owner{0};  // 0: free; a child of fork() removes nothing
  std::array<char, PATH_MAX> path{};
};
std::array<Slot, 16> slots;

// Where there is none left, a signal leaves the file to the next one who writes it.
int take_slot(const std::string& path) {
  if (path.size() >= PATH_MAX) {
    return -1;
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    pid_t free = 0;
    if (slots[i].owner.compare_exchange_strong(free, -1)) {
      std::memcpy(slots[i].path.data(), path.c_str(), path.size() + 1);
      slots[i].owner = getpid();
      return static_cast<int>(i);
    }
  }
  return -1;
}

void remove_and_end(int number) {
  for (const Slot& slot : slots) {
    if (slot.owner == getpid()) {
      unlink(slot.path.data());
    }
  }
  std::signal(number, SIG_DFL);
  std::raise(number);  // once this returns
}

// Its process is gone, here and, as far as its lock can tell, on every other machine.
bool is_abandoned(const fs::path& file, pid_t process) {
  if (kill(process, 0) == 0 || errno != ESRCH) {
    return false;
  }
  const FileDescriptor there(open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return there.valid() && flock(there.get(), LOCK_EX | LOCK_NB) == 0;
}

void remove_abandoned(const fs::path& path) {
  const std::string begin = path.filename().string() + std::string(kMark);
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(path.has_parent_path() ? path.parent_path() : ".", error), last;
       !error && it != last;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto process =
        name.starts_with(begin) ? parse_integer(name.substr(begin.size())) : std::nullopt;
    if (process && *process > 0 && *process <= INT_MAX &&
        is_abandoned(it->path(), static_cast<pid_t>(*process))) {
      found.push_back(it->path());
    }
  }
  for (const fs::path& each : found) {
    fs::remove(each, error);
  }
}

}  // namespace

PartialFile::PartialFile(const std::string& path)
    : path_(path), partial_(concat(path, kMark, getpid())) {
  remove_abandoned(path);
  slot_ = take_slot(partial_);
  file_ = FileDescriptor(open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_.valid()) {
    error_ = errno;
  } else {
    flock(file_.get(), LOCK_EX | LOCK_NB);  // no harm where the file system has no locks
  }
}

PartialFile::~PartialFile() {
  if (!finished_ && file_.valid()) {
    unlink(partial_.c_str());
  }
  if (slot_ >= 0) {
    slots[static_cast<std::size_t>(slot_)].owner = 0;
  }
}

void PartialFile::check_created() const {
  if (error_ != 0) {
    throw Error(concat("\"", path_, "\" could not be created: ", errno_text(error_)));
  }
}

void PartialFile::finish() {
  if (fsync(file_.get()) != 0) {
    throw Error(concat("\"", path_, "\" could not be written to disk: ", errno_text(errno)));
  }
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    throw Error(concat("\"", partial_, "\" could not be renamed: ", errno_text(errno)));
  }
  finished_ = true;
  file_.reset();
}

void remove_partial_files_at_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
      struct sigaction action {};
      action.sa_handler = remove_and_end;
      sigaction(number, &action, nullptr);
    }
  }
}

}  // namespace trireme
