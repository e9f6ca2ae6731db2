#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "comm/order/operation.h"
#include "comm/shm/endpoint.h"
#include "device/driver.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// Throws ConfigError where a call's memory of a device is nothing that the ranks of a machine can
// work on.
void check_device_memory(const Endpoint& endpoint, const Operation& operation);

// How SharedBuffers on a device come about: every rank offers memory of its own, and rank 0 hands
// all descriptors to everyone. In two steps, between which the ranks agree about the size.
class DeviceMemory {
 public:
  DeviceMemory(Endpoint& endpoint, Milliseconds timeout) : endpoint_(endpoint), timeout_(timeout) {}

  // Of buffer `id`. Does not throw: what went wrong here is thrown by `map`.
  void offer(Device device, std::size_t bytes, std::uint32_t id);
  // What was offered, of all ranks; no mapping where another rank has none.
  struct Mapped {
    std::shared_ptr<device::Mapping> mapping;
    std::size_t stride = 0;  // bytes of one rank's part
  };
  Mapped map();

 private:
  void send(Link& link, const std::vector<int>& fds) const;
  std::vector<FileDescriptor> receive(Link& link);
  // All ranks' descriptors, by rank; empty where one has none.
  std::vector<FileDescriptor> exchange();

  Endpoint& endpoint_;
  const Milliseconds timeout_;

  // Of the allocation at hand:
  std::uint32_t id_ = 0;
  Device device_;
  device::Parts parts_;
  FileDescriptor mine_;
  std::exception_ptr refused_;
};

}  // namespace trireme::detail
