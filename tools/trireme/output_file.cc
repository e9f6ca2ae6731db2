#include "output_file.h"

#include <cerrno>
#include <cstdio>

#include "trireme/core/error.h"

namespace trireme::tools {

void write_output(const std::string& path, const std::string& content) {
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

}  // namespace trireme::tools
