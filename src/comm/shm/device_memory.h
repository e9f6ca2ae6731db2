#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "comm/order/operation.h"
#include "comm/queue/backend.h"
#include "comm/shm/endpoint.h"
#include "device/driver.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// Throws ConfigError where a call's memory of a device is nothing that the ranks of a machine can
// work on.
void check_device_memory(const Endpoint& endpoint, const Operation& operation);

// How what is asked for is divided into pages.
device::Parts parts_of(const MemoryRequest& request, int rank, int size, std::size_t page);

// How SharedBuffers on a device come about: every rank offers memory of its own, and rank 0 hands
// all descriptors to everyone. In two steps, between which the ranks agree about the size.
class DeviceMemory {
 public:
  DeviceMemory(Endpoint& endpoint, Milliseconds timeout) : endpoint_(endpoint), timeout_(timeout) {}

  // Of buffer `id`. Does not throw: what went wrong here is thrown by `map`.
  void offer(const MemoryRequest& request, std::uint32_t id);
  // What was offered, of all ranks; null where another rank has none.
  std::shared_ptr<device::Mapping> map();
  const device::Parts& parts() const { return parts_; }

 private:
  void send(Link& link, const std::vector<int>& fds) const;
  std::vector<FileDescriptor> receive(Link& link);
  // All ranks' descriptors, rank after rank; empty where one has none.
  std::vector<FileDescriptor> exchange();

  Endpoint& endpoint_;
  const Milliseconds timeout_;

  // Of the allocation at hand:
  std::uint32_t id_ = 0;
  Device device_;
  device::Parts parts_;
  std::vector<FileDescriptor> mine_;
  std::exception_ptr refused_;
};

}  // namespace trireme::detail
