#include "output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::tools {

void write_output(const std::string& path, const std::string& content) {
  if (is_standard_output(path)) {
    std::fwrite(content.data(), 1, content.size(), stdout);  // main() looks whether it went well
    return;
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  bool good = file != nullptr;
  int reason = errno;
  if (good) {
    good = std::fwrite(content.data(), 1, content.size(), file) == content.size();
    reason = errno;
    if (std::fclose(file) != 0 && good) {  // what was buffered may only fail here
      good = false;
      reason = errno;
    }
  }
  TRIREME_CHECK(good, "could not write ", path, ": ", detail::errno_text(reason));
}

void check_output(const std::string& path) {
  std::string probe = path + ".XXXXXX";
  const FileDescriptor made(mkstemp(probe.data()));
  TRIREME_CHECK(made.valid(),
                "expected a place for the output, where a file can be made, found \"{}\": {}",
                {path, detail::errno_text(errno)});
  unlink(probe.c_str());
}

}  // namespace trireme::tools
