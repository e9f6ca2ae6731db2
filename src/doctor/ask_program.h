#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/core/deadline.h"

namespace trireme::detail {

// What a short-lived child process said.
struct Answer {
  int code = -1;     // its exit code; 127: it could not be started; -1: it was killed
  std::string text;  // standard output and standard error together
};

// Runs a program, found in PATH, and kills it at the deadline.
Answer ask_program(const std::vector<std::string>& command,
                   Milliseconds limit = Milliseconds(3000));

// Runs a function that gives a text in a child process, so that whatever it loads or breaks is gone
// with it. Not for a process with several threads.
Answer ask_child(const std::function<std::string()>& question,
                 Milliseconds limit = Milliseconds(3000));

}  // namespace trireme::detail
