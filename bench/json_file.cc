#include "json_file.h"

#include <csignal>

#include "trireme/core/error.h"

namespace trireme::bench {

void refuse_standard_output(const std::string& path) {
  TRIREME_CHECK(!is_standard_output(path),
                "--json: expected a file, found \"-\": standard output has the table itself");
}

JsonFile::JsonFile(const std::string& path) {
  refuse_standard_output(path);
  if (!path.empty()) {
    std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
    remove_partial_files_at_signals();
    file_ = std::make_unique<OutputFile>(path, "--json");
  }
}

void JsonFile::write(const std::string& json) {
  if (file_) {
    file_->write(json + "\n");
    file_->finish();
  }
}

}  // namespace trireme::bench
