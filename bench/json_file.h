#pragma once

#include <memory>
#include <string>

#include "trireme/core/output_file.h"

namespace trireme::bench {

// Throws ConfigError for "-".
void refuse_standard_output(const std::string& path);

// Of --json: opened before anything is measured, there whole or not at all.
class JsonFile {
 public:
  // Empty: nothing is written. Throws ConfigError.
  explicit JsonFile(const std::string& path);
  bool is_wanted() const { return file_ != nullptr; }
  // All of it. Throws Error with file and reason (a full disk).
  void write(const std::string& json);

 private:
  std::unique_ptr<OutputFile> file_;
};

}  // namespace trireme::bench
