#include "doctor/memory_reading.h"

#include "trireme/core/error.h"

namespace trireme::detail {

Finding judge_ordinary_memory(const OrdinaryMemory& memory, int ranks) {
  constexpr char kCheck[] = "kernel copy";
  if (ranks == 1) {
    return {kCheck, "not needed: one rank here"};
  }
  if (memory.one_copy) {
    return {kCheck,
            "ranks read each other's ordinary memory in one copy (process_vm_readv)",
            {{"copies", 1}}};
  }
  return {kCheck,
          concat("ordinary memory takes two copies between ranks: ", memory.reason),
          {{"copies", 2}},
          Verdict::kNote,
          memory.remedy};
}

}  // namespace trireme::detail
