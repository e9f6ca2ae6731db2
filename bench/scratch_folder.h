#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/core/file_descriptor.h"

namespace trireme::bench {

// A folder that goes away with the benchmark, however that ends: a process beside it waits until it
// and all that it has started are gone.
class ScratchFolder {
 public:
  // Where `parent` is missing it is made, and goes away too. `choice`: how another one is chosen.
  explicit ScratchFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path(),
      const char* choice = "TMPDIR");
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  void start_keeper();
  void remove() const;

  std::string path_;
  std::vector<std::filesystem::path> made_;
  FileDescriptor keeper_;  // what it listens to; those that this process starts have it, too
};

}  // namespace trireme::bench
