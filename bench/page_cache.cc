#include "page_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 20;
constexpr std::chrono::milliseconds kPause{50};

FileDescriptor opened(const fs::path& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  TRIREME_CHECK(file.valid(), path, " cannot be read: ", detail::errno_text(errno));
  return file;
}

// Whether any of it is in memory.
bool is_resident(const fs::path& path) {
  const std::size_t bytes = fs::file_size(path);
  if (bytes == 0) {
    return false;
  }
  const FileDescriptor file = opened(path);
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  TRIREME_CHECK(mapped != MAP_FAILED, path, " cannot be mapped: ", detail::errno_text(errno));
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  const int code = mincore(mapped, bytes, pages.data());
  munmap(mapped, bytes);
  TRIREME_CHECK(code == 0, "mincore of ", path, " failed: ", detail::errno_text(errno));
  return std::any_of(pages.begin(), pages.end(), [](unsigned char flags) { return flags & 1; });
}

}  // namespace

bool drop_from_page_cache(const std::string& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  // Pages that somebody is busy with are passed over: a page that is read ahead of time, or one
  // that another rank looks at.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (const fs::path& path : files) {
      const FileDescriptor file = opened(path);
      fsync(file.get());  // pages that are not on disk yet cannot be dropped
      posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    if (std::none_of(files.begin(), files.end(), is_resident)) {
      return true;
    }
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

std::string file_system_of(const std::string& folder) {
  // The last mount whose place is a prefix and that is longest: "36 35 98:0 / /home rw - ext4 ..."
  const std::string path = fs::canonical(folder).string() + "/";
  std::ifstream mounts("/proc/self/mountinfo");
  std::string found = "unknown";
  std::size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word;
    std::string place;
    for (int i = 0; i < 5; ++i) {
      words >> place;
    }
    while (words >> word && word != "-") {
    }
    words >> word;
    const std::string prefix = place == "/" ? place : place + "/";
    if (path.rfind(prefix, 0) == 0 && prefix.size() >= longest) {
      longest = prefix.size();
      found = word;
    }
  }
  return found;
}

}  // namespace trireme::bench
