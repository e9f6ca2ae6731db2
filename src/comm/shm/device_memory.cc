#include "comm/shm/device_memory.h"

#include <algorithm>
#include <span>
#include <utility>

#include "device/host/segment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// What is sent with descriptors of memory on a device.
struct MemoryNotice {
  std::uint32_t id;
  std::uint32_t descriptors;
};

std::vector<int> descriptors_of(std::span<const FileDescriptor> owned) {
  std::vector<int> fds;
  for (const FileDescriptor& each : owned) {
    if (each.valid()) {
      fds.push_back(each.get());
    }
  }
  return fds;
}

}  // namespace

void check_device_memory(const Endpoint& endpoint, const Operation& op) {
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kBroadcast:
      break;
    case OpKind::kAllocate:
      return;
    default:
      throw ConfigError(
          concat("{}: memory of {} cannot be communicated by this operation, only by all_reduce, "
                 "reduce_scatter, all_gather and broadcast: copy it to the host first",
                 {op_name(op.kind), device_name(op.device)}));
  }
  std::uint32_t id = 0;
  std::uint64_t offset = 0;
  TRIREME_CHECK(
      op.input.numel() == 0 ||
          endpoint.locate(op.input.bytes(), op.input.size_bytes(), &id, &offset),
      "{}: memory of {} cannot be communicated where the other ranks do not see it: take it from "
      "Communicator::allocate with this device, or copy it to the host first",
      {op_name(op.kind), device_name(op.device)});
}

void DeviceMemory::offer(Device device, std::size_t bytes, std::uint32_t id) {
  id_ = id;
  device_ = device;
  mine_.reset();
  refused_ = nullptr;
  try {
    device::Driver& driver = device::open(device);
    parts_ = {endpoint_.rank(),
              endpoint_.size(),
              device::round_up(std::max<std::size_t>(bytes, 1), driver.page_bytes())};
    mine_ = driver.offer(parts_);
  } catch (const Error&) {  // of this rank: the others learn of it
    refused_ = std::current_exception();
  }
  if (endpoint_.rank() != 0) {
    send(*endpoint_.links().front(), descriptors_of(std::span(&mine_, 1)));
  }
}

DeviceMemory::Mapped DeviceMemory::map() {
  const std::vector<FileDescriptor> offers = exchange();
  if (refused_) {
    std::rethrow_exception(std::exchange(refused_, nullptr));
  }
  if (static_cast<int>(offers.size()) != endpoint_.size()) {
    return {};
  }
  return {device::driver(device_).map(parts_, offers), parts_.bytes};
}

std::vector<FileDescriptor> DeviceMemory::exchange() {
  if (endpoint_.rank() != 0) {
    mine_.reset();  // it comes back with the others'
    return receive(*endpoint_.links().front());
  }
  std::vector<FileDescriptor> offers;
  offers.push_back(std::move(mine_));
  for (const auto& link : endpoint_.links()) {
    if (link) {
      std::vector<FileDescriptor> theirs = receive(*link);
      offers.push_back(theirs.empty() ? FileDescriptor() : std::move(theirs.front()));
    }
  }
  if (!std::ranges::all_of(offers, &FileDescriptor::valid)) {
    offers.clear();
  }
  for (const auto& link : endpoint_.links()) {
    if (link) {
      send(*link, descriptors_of(offers));
    }
  }
  return offers;
}

void DeviceMemory::send(Link& link, const std::vector<int>& fds) const {
  const MemoryNotice notice{id_, static_cast<std::uint32_t>(fds.size())};
  // A rank that does not take it is dead or stuck, which the operation that follows finds.
  link.send(&notice, sizeof(notice), fds, Deadline(timeout_));
}

std::vector<FileDescriptor> DeviceMemory::receive(Link& link) {
  MemoryNotice notice{};
  std::vector<FileDescriptor> fds;
  const bool came = link.receive(&notice, sizeof(notice), &fds, Deadline(timeout_));
  TRIREME_ASSERT(
      came && notice.id == id_, "the descriptor of shared buffer #{} did not arrive", {id_});
  if (fds.size() != notice.descriptors && !refused_) {
    refused_ = std::make_exception_ptr(MemoryError(
        "the descriptor of the memory was lost: raise the limit on open files (ulimit -n)"));
  }
  return fds;
}

}  // namespace trireme::detail
