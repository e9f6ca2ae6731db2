#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "trireme/core/file_descriptor.h"

// Messages of Unix sockets, with file descriptors. Signals do not interrupt them.

namespace trireme::detail {

// Of one message; the kernel passes 253 at a time.
inline constexpr std::size_t kMostDescriptors = 250;

// As sendmsg() and recvmsg(): what they return, and errno. Descriptors that do not fit under the
// limit on open files are missing from `fds`.
ssize_t send_message(int socket,
                     const std::string& bytes,
                     const std::vector<int>& fds,
                     int flags = 0);
ssize_t receive_message(int socket,
                        std::span<char> bytes,
                        std::vector<FileDescriptor>& fds,
                        int flags = 0);

}  // namespace trireme::detail
