#include "data/file_identity.h"

#include <ctime>
#include <filesystem>

#include <sys/stat.h>

#include "trireme/core/error.h"

namespace trireme::detail {

std::string file_identity(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return {};
  }
  std::error_code ignored;
  const auto nanoseconds = [](const timespec& time) {
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return concat("{} device {} inode {} bytes {} modified {} changed {}",
                {std::filesystem::absolute(path, ignored).string(),
                 status.st_dev,
                 status.st_ino,
                 status.st_size,
                 nanoseconds(status.st_mtim),
                 nanoseconds(status.st_ctim)});
}

bool changed_just_now(const std::string& path) {
  constexpr std::time_t kTick = 2;  // seconds: the coarsest clock of a common file system
  struct stat status {};
  timespec now{};
  return stat(path.c_str(), &status) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
         now.tv_sec - status.st_ctim.tv_sec <= kTick;
}

}  // namespace trireme::detail
