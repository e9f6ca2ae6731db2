#include "launch/job_output.h"

#include <iterator>

#include <poll.h>

#include "trireme/core/concat.h"

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
