#pragma once

#include "comm/shm/membership.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// What the ranks of this machine have found out about each other's memory; the first of them also
// logs what is not as fast as it could be.
OrdinaryMemory note_ordinary_memory(const Membership& membership);

// ", ordinary memory in one copy", for descriptions; nothing where a rank is alone.
std::string copies_text(const OrdinaryMemory& memory, int local_size);

}  // namespace trireme::detail
