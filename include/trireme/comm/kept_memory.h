#pragma once

#include <cstdint>
#include <vector>

#include "trireme/core/file_descriptor.h"

// Memory that outlives the ranks of an elastic job: their launcher keeps its descriptors, and hands
// them to the ranks of later epochs.

namespace trireme {

// Whether this process has such a launcher.
bool launcher_keeps_memory();

// Whether the launcher wants its ranks to meet anew, because some come or leave.
bool epoch_is_over();

// From now on the launcher has it, too, as memory of this epoch, for this use (a number that those
// who need memory for different things agree on). Throws Error where the launcher is gone.
void keep_memory(std::int64_t epoch, std::int64_t use, const FileDescriptor& memory);

// All that the launcher has, of any rank, in the order in which it came. Throws CommError where the
// launcher wants the ranks to meet anew.
std::vector<FileDescriptor> kept_memory();

// What was kept in epochs before this one, for this use, is needed no longer.
void forget_memory_before(std::int64_t epoch, std::int64_t use);

}  // namespace trireme
