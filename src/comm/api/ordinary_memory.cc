#include "comm/api/ordinary_memory.h"

#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme::detail {

OrdinaryMemory note_ordinary_memory(const Membership& membership) {
  const KernelCopy& kernel = membership.kernel_copy;
  if (membership.size == 1) {
    return {kernel.usable(), "", ""};
  }
  if (!kernel.usable() && membership.rank == 0) {
    log(LogLevel::kInfo,
        concat("ordinary memory passes between the ranks of this machine in two copies instead of "
               "one: {}; {}",
               {kernel.why_not(), kernel.remedy()}));
  }
  return {kernel.usable(), kernel.why_not(), kernel.remedy()};
}

std::string copies_text(const OrdinaryMemory& memory, int local_size) {
  if (local_size == 1) {
    return "";
  }
  return memory.one_copy ? ", ordinary memory in one copy" : ", ordinary memory in two copies";
}

}  // namespace trireme::detail
