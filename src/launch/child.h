#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "launch/placement.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// One rank's process as the launcher holds it.
struct Child {
  pid_t pid = -1;
  FileDescriptor output;  // the reading ends of its standard output and standard error
  FileDescriptor errors;
};

struct ChildOptions {
  std::string program;  // a path
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // complete, NAME=VALUE
  Placement placement;
  bool inherits_input = false;   // else it reads from /dev/null
  bool inherits_output = false;  // its standard output is the launcher's; Child::output is empty
  std::vector<int> kept_fds;     // stay open in the child
};

// Starts a process in a process group of its own that dies with the launcher. Throws ConfigError
// with the reason when it cannot be started.
Child start_child(const ChildOptions& options);

// The path of `program` as a shell would find it. Throws ConfigError where there is none.
std::string find_program(const std::string& program);

}  // namespace trireme::detail
