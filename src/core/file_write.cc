#include "trireme/core/file_write.h"

#include <cerrno>

#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme {

void write_all(int fd, const std::string& path, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, at, bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      throw Error(
          detail::concat("\"{}\" could not be written: {}; free up space, or choose another folder",
                         {path, detail::errno_text(errno)}));
    }
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace trireme
