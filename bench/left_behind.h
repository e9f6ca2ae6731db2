#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

namespace trireme::bench {

// What a job must not leave behind: processes, and shared memory.
class LeftBehind {
 public:
  // Before the job. It gets `mark` in its environment, and hands it on.
  LeftBehind();
  const std::string& mark() const { return mark_; }
  // After it, what is still there: "0 processes, 0 pieces of shared memory".
  std::string text() const;
  bool nothing() const;

 private:
  std::vector<pid_t> processes() const;
  std::set<std::string> shared_memory() const;  // that was not there before

  std::string mark_;
  std::set<std::string> before_;
};

// What a process holds at one time; 0 where it is gone.
struct Held {
  std::int64_t descriptors = 0;
  std::int64_t bytes = 0;  // resident
};
Held held_by(pid_t process);

// What the processes of a long job hold after each fault. A leak shows as a trend: what they hold
// goes up and down with the number of ranks.
class HeldOverTime {
 public:
  void add(pid_t launcher, const std::vector<pid_t>& ranks);
  // Medians over the first and the last tenth, and what was the most.
  std::string text() const;

 private:
  std::vector<Held> launcher_;
  std::vector<Held> ranks_;  // the most of any
};

}  // namespace trireme::bench
