#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/machine_meeting.h"
#include "comm/shm/kernel_copy.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// The ranks of one machine, and the memory that they share to coordinate.
struct Membership {
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks;       // of every rank: its number in the world, for messages
  std::vector<int> pids;              // of every rank
  std::vector<FileDescriptor> lives;  // a pidfd of every rank: readable when its process has ended
  FileDescriptor control;             // the memory of control.h
  std::size_t stage_bytes = 0;
  std::size_t lane_bytes = 0;  // 0: there are no lanes
  int sum_group = 1;           // ranks whose terms a sum adds up first (InitOptions::sum_group)
  // More ranks than processors that they may run on, all together: waiting must give the processor
  // away at once.
  bool oversubscribed = false;
  KernelCopy kernel_copy;
  // To every rank on rank 0, to rank 0 elsewhere: for descriptors of memory allocated later.
  std::vector<std::unique_ptr<Link>> links;
  std::string world;  // what no other is called
};

struct MembershipOptions {
  MachineMeetingOptions meeting;
  std::size_t stage_bytes = 0;
  bool lanes = false;            // the same on all ranks
  bool kernel_copy = true;       // InitOptions::kernel_copy; the ranks use it where all want it
  std::vector<int> world_ranks;  // Membership::world_ranks
  int sum_group = 1;
  bool oversubscribed = false;  // also where these ranks alone would not be
};

// Brings the ranks together and gives them their memory. Blocking, collective. Throws like `meet`,
// and MemoryError.
Membership become_members(const MembershipOptions& options);

}  // namespace trireme::detail
