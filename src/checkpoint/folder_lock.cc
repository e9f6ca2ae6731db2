#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme {
namespace {

using detail::concat;
using detail::errno_text;

constexpr auto kPause = std::chrono::milliseconds(20);
constexpr auto kLockPatience = std::chrono::milliseconds(60'000);

std::string text_of(int file) {
  char text[256];
  const ssize_t length = pread(file, text, sizeof(text), 0);
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "another process";
}

std::string machine_name() {
  char name[128] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// What is written into the lock: who holds it.
std::string holder_name(const std::string& process) {
  return concat("process ", process, " on ", machine_name());
}

// Whether the holder was killed and is about to let go: a process that ends finishes what it has
// asked of the disk, then gives up its memory, which takes a while where it is large, then its
// files.
bool is_ending(const std::string& holder) {
  std::istringstream words(holder);
  std::string word;
  std::string process;
  words >> word >> process;
  if (holder != holder_name(process)) {
    return false;  // on another machine
  }
  std::ifstream status("/proc/" + process + "/status");
  bool has_memory = false;
  bool killed = false;
  for (std::string name, value; std::getline(status, name, ':') && std::getline(status, value);) {
    has_memory |= name == "VmSize";
    if (name == "SigPnd" || name == "ShdPnd") {
      killed |= (std::strtoull(value.c_str(), nullptr, 16) >> (SIGKILL - 1) & 1) != 0;
    }
  }
  return killed || !has_memory;
}

// Returns 0, or the error. Has patience with a holder that is about to let go.
int try_to_lock(int file, int kind) {
  const auto attempt = [&] { return flock(file, kind | LOCK_NB) == 0 ? 0 : errno; };
  int reason = attempt();
  for (auto left = kLockPatience;
       reason == EWOULDBLOCK && left > left.zero() && is_ending(text_of(file));
       left -= kPause) {
    std::this_thread::sleep_for(kPause);
    reason = attempt();
  }
  return reason;
}

[[noreturn]] void refuse(const std::string& folder, const std::string& holder) {
  throw ConfigError(concat(
      "\"{}\" is being written by another job, {}: wait for it to end, or choose another folder",
      {folder, holder}));
}

std::string lock_of(const std::string& folder) {
  return folder + "/.lock";
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TRIREME_CHECK(!error, "the folder \"", folder, "\" could not be created: ", error.message());
  const std::string path = lock_of(folder);
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  TRIREME_CHECK(file_ >= 0,
                "\"{}\" could not be opened: {}: checkpoints need a writable folder",
                {path, errno_text(errno)});
  // The kernel lets go of it when the process ends, however it ends.
  const int reason = try_to_lock(file_, LOCK_EX);
  if (reason != 0) {
    const std::string holder = text_of(file_);
    close(file_);
    file_ = -1;
    if (reason == EWOULDBLOCK) {
      refuse(folder, holder);
    }
    throw ConfigError(concat("\"", path, "\" could not be locked: ", errno_text(reason)));
  }
  const std::string holder = holder_name(std::to_string(getpid()));
  // A full disk must not keep anybody from reading here.
  if (ftruncate(file_, 0) != 0 || pwrite(file_, holder.data(), holder.size(), 0) < 0) {
    errno = 0;
  }
}

void FolderLock::check_free(const std::string& folder) {
  const FileDescriptor file(
      open(lock_of(folder).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.valid() && try_to_lock(file.get(), LOCK_SH) == EWOULDBLOCK) {
    refuse(folder, text_of(file.get()));
  }
}

FolderLock::~FolderLock() {
  if (file_ >= 0) {
    close(file_);
  }
}

}  // namespace trireme
