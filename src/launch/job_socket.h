#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// Where a running job takes requests from its user's other programs: an abstract Unix socket, named
// after the user and the launcher's process, which vanishes with it. Requests and answers are one
// packet of text each; other users are not heard.
class JobSocket {
 public:
  // `answer` is called with each request. Throws ConfigError.
  explicit JobSocket(std::function<std::string(const std::string& request)> answer);

  int fd() const { return listener_.get(); }
  // Answers who has asked.
  void turn();

 private:
  std::function<std::string(const std::string&)> answer_;
  FileDescriptor listener_;
};

}  // namespace trireme::detail
