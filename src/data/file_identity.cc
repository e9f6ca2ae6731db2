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
  return concat(std::filesystem::absolute(path, ignored).string(),
                " device ",
                status.st_dev,
                " inode ",
                status.st_ino,
                " bytes ",
                status.st_size,
                " modified ",
                nanoseconds(status.st_mtim),
                " changed ",
                nanoseconds(status.st_ctim));
}

bool changed_just_now(const std::string& path) {
  constexpr std::time_t kTick = 2;  // seconds: the coarsest clock of a common file system
  struct stat status {};
  timespec now{};
  return stat(path.c_str(), &status) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
         now.tv_sec - status.st_ctim.tv_sec <= kTick;
}

}  // namespace trireme::detail
