#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

// Programs run from tests, and what is left of them.

namespace trireme::testing {

struct Finished {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
};

// A running program with its output going to temporary files.
class Program {
 public:
  // `environment` entries are NAME=VALUE, in addition to this process's.
  explicit Program(std::vector<std::string> command, std::vector<std::string> environment = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  pid_t pid() const { return pid_; }
  // The processes it has started, in the order of their start.
  std::vector<pid_t> children() const;
  // Waits until it has started `count` programs of this name; false after thirty seconds.
  bool wait_for_children(const std::string& name, std::size_t count) const;
  // Waits until standard output holds `text` `count` times; false after a minute.
  bool wait_for_output(const std::string& text, int count = 1) const;
  // What it has written to standard output so far.
  std::string output() const;
  Finished wait();
  // Kills it at the deadline; the result then has code 137, and its standard error says so.
  Finished wait(std::chrono::milliseconds deadline);

 private:
  pid_t pid_ = -1;
  std::string folder_;
  bool reaped_ = false;
};

Finished run_program(std::vector<std::string> command, std::vector<std::string> environment = {});

// The program under test, and a program beside the tests.
std::string trireme_binary();
std::string test_binary(const std::string& name);

// Waits until it is so; false after thirty seconds.
bool comes_true(const std::function<bool()>& condition);

// The processes on this machine whose environment has this entry.
std::vector<pid_t> processes_with(const std::string& entry);

// A value that no other test uses.
std::string unique_mark();

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

}  // namespace trireme::testing
