#include "launch/job_output.h"

#include <cerrno>
#include <iterator>

#include <poll.h>

#include "trireme/core/concat.h"
#include "trireme/core/error.h"

namespace trireme::detail {

void JobOutput::complain(const std::string& message) {
  errors_.push(concat("trireme: ", message, "\n"));
}

bool JobOutput::flush() {
  lines_.flush();
  errors_.flush();
  const bool news = (lines_.lost() || errors_.lost()) && !lost_;
  lost_ |= news;
  return news;
}

std::string JobOutput::why_lost() const {
  const int reason = lines_.lost() ? lines_.why_lost() : errors_.why_lost();
  return reason == 0 || reason == EPIPE ? "" : errno_text(reason);
}

void JobOutput::finish(Milliseconds patience, const SignalWatch& signals) {
  const Deadline deadline(patience);
  while ((!lines_.empty() || !errors_.empty()) && !deadline.passed()) {
    pollfd entries[] = {{lines_.empty() ? -1 : lines_.fd(), POLLOUT, 0},
                        {errors_.empty() ? -1 : errors_.fd(), POLLOUT, 0},
                        {signals.fd(), POLLIN, 0}};
    poll(entries, std::size(entries), 100);
    flush();
    if (SignalWatch::asks_to_end(signals.next())) {
      return;
    }
  }
}

}  // namespace trireme::detail
