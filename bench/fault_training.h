#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <signal.h>
#include <sys/types.h>

namespace trireme::bench {

// A training that runs beside this program; it ends with this object. What it prints goes to a file
// beside its folder.
class FaultTraining {
 public:
  // `run`: the folder where it leaves what it does; `mark`: an entry of its environment; `end`: the
  // signal that it gets where this process ends before it.
  FaultTraining(const std::vector<std::string>& words,
                std::string run,
                const std::string& mark = "",
                int end = SIGKILL);
  FaultTraining(const FaultTraining&) = delete;
  FaultTraining& operator=(const FaultTraining&) = delete;
  ~FaultTraining();

  pid_t pid() const { return pid_; }
  bool runs();
  // Its exit code, when it has ended.
  int wait();
  // Asks it to end.
  void stop();
  // The processes that it has started.
  std::vector<pid_t> ranks() const;

  // Of `trireme train`: the last step whose metrics are complete, and how often it has resumed, and
  // after which step the last time.
  std::int64_t step() const;
  std::pair<int, std::int64_t> resumed();

  // The last lines that it has printed.
  std::string last_words() const;

  // Waits until `condition` holds; false where the job ends, or takes too long.
  template <class Condition>
  bool wait_until(const Condition& condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
      if (!runs() || std::chrono::steady_clock::now() - begin > kLongestWait) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  static constexpr std::chrono::seconds kLongestWait{300};

  std::string run_;
  std::string output_;
  pid_t pid_ = -1;
  std::optional<int> code_;
  std::pair<int, std::int64_t> resumed_;
  std::streamoff log_read_ = 0;  // bytes of its log that have been looked through
};

// The path of `trireme`.
std::string own_program();
std::string file_text(const std::string& path);

}  // namespace trireme::bench
