#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "trireme/core/error.h"

namespace trireme::bench {

// A folder that goes away with the benchmark.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "trireme-bench-XXXXXX").string();
    TRIREME_CHECK(mkdtemp(pattern.data()) != nullptr, "no temporary folder: ", pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace trireme::bench
