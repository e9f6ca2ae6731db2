#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace trireme::detail {

// What ranks start and abandon. While this lives the process is a subreaper, as whose children such
// processes turn up. It may have children of its own, which are none of our business: those that
// were there before are never waited for nor ended.
class LeftBehind {
 public:
  LeftBehind();
  LeftBehind(const LeftBehind&) = delete;
  LeftBehind& operator=(const LeftBehind&) = delete;
  ~LeftBehind();  // the process is a subreaper again only if it was one before

  // Takes note of those that have ended by themselves; `ranks` are waited for elsewhere.
  void reap(const std::vector<pid_t>& ranks) const;
  // Ends the others, when there are no ranks any more. `job` is the value of TRIREME_JOB that the
  // ranks had.
  void end(const std::string& job) const;

 private:
  // A process, and when it was started: numbers are used again.
  using Process = std::pair<pid_t, std::uint64_t>;
  static Process process(pid_t pid);
  std::vector<pid_t> taken_over() const;

  std::set<Process> before_;
  bool was_subreaper_ = false;
};

}  // namespace trireme::detail
