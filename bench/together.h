#pragma once

#include <string>
#include <vector>

#include <signal.h>

namespace trireme::bench {

// While one exists, signals that would end this process wait: what a benchmark has made outside of
// it can then be taken away. run_together notices them.
class HeldSignals {
 public:
  HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals();

 private:
  sigset_t before_{};
};

// Runs commands at the same time and returns when all have ended: 0, or the exit code of the first
// that failed. When one fails the others are given a few seconds. A signal that would end this
// process ends them, and is returned as 128 + its number.
int run_together(const std::vector<std::vector<std::string>>& commands);

}  // namespace trireme::bench
