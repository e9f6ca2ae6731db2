#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/core/error.h"

namespace trireme::bench {

// A folder that goes away with the benchmark.
class ScratchFolder {
 public:
  // Where `parent` is missing it is made, and goes away too. `choice`: how another one is chosen.
  explicit ScratchFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path(),
      const char* choice = "TMPDIR") {
    for (std::filesystem::path part = parent; !part.empty() && !std::filesystem::exists(part);
         part = part.parent_path()) {
      made_.push_back(part);
    }
    std::error_code ignored;  // mkdtemp says it, too
    std::filesystem::create_directories(parent, ignored);
    std::string pattern = (parent / "trireme-bench-XXXXXX").string();
    TRIREME_CHECK(mkdtemp(pattern.data()) != nullptr,
                  "no folder can be created in ",
                  parent,
                  ": ",
                  detail::errno_text(errno),
                  "; choose another place with ",
                  choice);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    for (const std::filesystem::path& part : made_) {  // those that are empty, the innermost first
      std::filesystem::remove(part, ignored);
    }
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  std::vector<std::filesystem::path> made_;
};

}  // namespace trireme::bench
