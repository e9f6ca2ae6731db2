#include "launch/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <poll.h>
#include <unistd.h>

namespace trireme::detail {

void OutputQueue::flush() {
  std::size_t written = 0;
  while (written < waiting_.size()) {
    // A stream that is ready takes PIPE_BUF bytes without blocking. O_NONBLOCK would do too, but
    // is shared with everyone who has the same terminal open.
    pollfd entry{fd_, POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) {
      break;
    }
    const std::size_t length = std::min<std::size_t>(PIPE_BUF, waiting_.size() - written);
    const ssize_t got = write(fd_, waiting_.data() + written, length);
    if (got > 0) {
      written += static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      lost_ = got == 0 ? EIO : errno;
      waiting_.clear();
      return;
    }
  }
  waiting_.erase(0, written);
}

}  // namespace trireme::detail
