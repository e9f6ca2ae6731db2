#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/rendezvous/rendezvous.h"

// What the two sides of a rendezvous share. After the admission:
//
//   rank 0 -> everyone  Welcome           with the control memory; then every rank's probe, then
//                                         the process handles, at most kHandlesPerMessage at a time
//   everyone -> rank 0  KernelCopyReport  whether it can read the others' memory
//   rank 0 -> everyone  KernelCopyReport  what holds for all

namespace trireme::detail {

// Who a rank of this machine is, and where its memory can be tried.
struct LocalHello {
  Hello hello;
  MemoryProbe probe;
};

// What rank 0 tells everyone once the world is complete.
struct Welcome {
  std::uint32_t processors;
  std::uint64_t stage_bytes;
  std::uint32_t ready;  // 0: something failed after admission, `message` says what
  char message[1024];
};

constexpr std::size_t kHandlesPerMessage = 128;

// A handle of this process that tells its holder when the process has ended. Throws ConfigError
// where the kernel knows no such thing.
FileDescriptor open_own_life();

// The two sides; both block until the world is complete or the deadline has passed.
Membership host_world(const RendezvousOptions& options);
Membership join_world(const RendezvousOptions& options);

}  // namespace trireme::detail
