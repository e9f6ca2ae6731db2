#pragma once

#include <string>

namespace trireme::detail {

// A text that a file has until something is written to it or another takes its name: its path, the
// place on its disk, its size and the times of its last changes. The kernel sets the last of them,
// and nobody can set it back. Empty where the file cannot be looked at.
std::string file_identity(const std::string& path);

// Whether a file changed so lately that the next change may come within the same tick of the
// clock, and so leave the identity as it is.
bool changed_just_now(const std::string& path);

}  // namespace trireme::detail
