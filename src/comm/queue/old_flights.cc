#include "comm/queue/old_flights.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/concat.h"
#include "trireme/core/environment.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t kDay = 86400;
constexpr std::time_t kWeek = 7 * kDay;
constexpr std::size_t kNewest = 100;
constexpr std::size_t kDigits = 12;  // of a job's digest, the name of its folder

struct OldFlight {
  std::string name;
  std::time_t changed = 0;
};

// Through the folder's descriptor, and no links: what others may have put there is not followed.
FileDescriptor open_inside(int parent, const std::string& name) {
  FileDescriptor folder(
      openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_ours =
      folder.valid() && fstat(folder.get(), &status) == 0 && status.st_uid == geteuid();
  return is_ours ? std::move(folder) : FileDescriptor();
}

std::vector<std::string> names_in(const FileDescriptor& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator(concat("/proc/self/fd/", folder.get()), ignored)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

void remove_flight(const FileDescriptor& parent, const std::string& name) {
  const FileDescriptor folder = open_inside(parent.get(), name);
  if (!folder.valid()) {
    return;
  }
  for (const std::string& file : names_in(folder)) {
    if (file.starts_with("flight-") || file.starts_with(".flight-")) {
      unlinkat(folder.get(), file.c_str(), 0);
    }
  }
  unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);  // stays where something else is in it
}

// Seconds after the machine began that a process did; 0 where it is gone.
double process_began(pid_t process) {
  std::ifstream file(concat("/proc/", process, "/stat"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name = text.rfind(')');
  if (name == std::string::npos) {
    return 0;
  }
  std::istringstream fields(text.substr(name + 2));
  std::string field;
  constexpr int kStartTime = 20;  // the 22nd of all, the name being the second
  for (int i = 0; i < kStartTime; ++i) {
    fields >> field;
  }
  return static_cast<double>(parse_integer(field).value_or(0)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

pid_t parent_of(const fs::path& process) {
  std::ifstream file(process / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) {
      return static_cast<pid_t>(std::strtol(line.c_str() + 5, nullptr, 10));
    }
  }
  return 0;
}

}  // namespace

void remove_old_flights(const std::string& folder, std::time_t now, std::time_t jobs_since) {
  const FileDescriptor parent = open_inside(AT_FDCWD, folder);
  if (!parent.valid()) {
    return;
  }
  std::vector<OldFlight> flights;
  for (const std::string& name : names_in(parent)) {
    struct stat status {};
    if (name.size() == kDigits && name.find_first_not_of("0123456789abcdef") == std::string::npos &&
        fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      flights.push_back({name, status.st_mtim.tv_sec});
    }
  }
  std::sort(flights.begin(), flights.end(), [](const OldFlight& a, const OldFlight& b) {
    return a.changed > b.changed;
  });
  for (std::size_t i = 0; i < flights.size(); ++i) {
    const std::time_t age = now - flights[i].changed;
    // A day more for a clock that was set meanwhile.
    const bool may_be_live = flights[i].changed >= jobs_since - kDay;
    if (!may_be_live && (age > kWeek || (age > kDay && i >= kNewest))) {
      remove_flight(parent, flights[i].name);
    }
  }
}

// A rank may have been started in the place of another: its launcher is as old as the job.
std::time_t jobs_run_since(std::time_t now) {
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  auto oldest = static_cast<double>(since_boot.tv_sec);
  const std::string entry = concat(std::string(1, '\0'), kEnvJob, "=");
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const auto pid = parse_integer(process.path().filename().string());
    if (!pid || *pid == getpid()) {
      continue;
    }
    std::ifstream file(process.path() / "environ", std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    if ((std::string(1, '\0') + all).find(entry) == std::string::npos) {
      continue;
    }
    for (const pid_t each : {static_cast<pid_t>(*pid), parent_of(process.path())}) {
      if (const double began = process_began(each); each > 1 && began > 0) {
        oldest = std::min(oldest, began);
      }
    }
  }
  return now - since_boot.tv_sec + static_cast<std::time_t>(oldest);
}

}  // namespace trireme::detail
