#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/processes.h"

namespace trireme::testing {

// A folder with the files of /proc and /sys that a machine would have.
class MadeUpMachine {
 public:
  const std::string& root() const { return folder_.path(); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace trireme::testing
