#include "inherited_text.h"

#include <cerrno>

#include <sys/mman.h>

#include "trireme/core/error.h"
#include "trireme/core/file_write.h"

namespace trireme::tools {

std::string inherited_text(const std::string& text) {
  const int file = memfd_create("trireme-settings", 0);  // not closed on exec
  if (file < 0) {
    throw Error(detail::concat("memory for the ranks' settings could not be made: ",
                               detail::errno_text(errno)));
  }
  std::string path = detail::concat("/proc/self/fd/", file);
  write_all(file, path, text.data(), text.size());
  return path;
}

}  // namespace trireme::tools
