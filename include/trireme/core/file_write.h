#pragma once

#include <cstddef>
#include <string>

namespace trireme {

// Writes all the bytes to a file that is open as `fd`. Throws Error with `path`, the reason (a full
// disk) and what to do; some of them may be written then.
void write_all(int fd, const std::string& path, const void* data, std::size_t bytes);

}  // namespace trireme
