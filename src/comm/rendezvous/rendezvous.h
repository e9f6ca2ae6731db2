#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/channel.h"
#include "comm/shm/kernel_copy.h"
#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// The ranks of one machine after they have found and admitted each other.
struct Membership {
  int rank = 0;
  int size = 1;
  int processors = 1;                 // that the ranks may run on, all together
  std::vector<int> pids;              // of every rank
  std::vector<FileDescriptor> lives;  // a pidfd of every rank: readable when its process has ended
  FileDescriptor control;             // the memory of shm/control.h
  std::size_t stage_bytes = 0;
  int first_rank = 0;  // in the world, of the machine's rank 0; for messages
  int sum_group = 1;   // ranks whose terms a sum adds up first (InitOptions::sum_group)
  KernelCopy kernel_copy;
  // To every rank on rank 0, to rank 0 elsewhere: for descriptors of memory allocated later.
  std::vector<Channel> links;
};

struct RendezvousOptions {
  Identity identity;
  std::string name;  // of the meeting point; the same for all ranks of a job, different for others
  std::size_t stage_bytes = 0;
  bool kernel_copy = true;  // InitOptions::kernel_copy; the ranks use it where all want it
  int first_rank = 0;       // in the world, of the machine's rank 0; for messages
  Milliseconds timeout{0};
};

// Brings the ranks of a job on this machine together. Rank 0 listens on a Unix socket, the others
// come to it. Blocking, collective. Throws CommError (kRendezvousTimeout with the missing ranks,
// kRefused with the reason) and MemoryError.
Membership meet(const RendezvousOptions& options);

}  // namespace trireme::detail
