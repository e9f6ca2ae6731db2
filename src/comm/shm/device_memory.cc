#include "comm/shm/device_memory.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "comm/rendezvous/descriptor_messages.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// What is sent with descriptors of memory on a device.
struct MemoryNotice {
  std::uint32_t id;
  std::uint32_t descriptors;
};

std::vector<int> descriptors_of(std::span<const FileDescriptor> owned) {
  std::vector<int> fds;
  fds.reserve(owned.size());
  for (const FileDescriptor& each : owned) {
    fds.push_back(each.get());
  }
  return fds;
}

}  // namespace

void check_device_memory(const Endpoint& endpoint, const Operation& op) {
  check_works_on_devices(op);
  if (op.kind == OpKind::kAllocate) {
    TRIREME_CHECK(2 * endpoint.size() <= static_cast<int>(kMostDescriptors),
                  "allocate: memory of {} can be shared by {} ranks at most, found {}: use fewer "
                  "ranks, or the host",
                  {device_name(op.device), kMostDescriptors / 2, endpoint.size()});
    return;
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

device::Parts parts_of(const MemoryRequest& request, int rank, int size, std::size_t page) {
  return request.run.empty() ? device::separate_parts(rank, size, request.bytes, page)
                             : device::adjoining_parts(rank, request.run, page);
}

void DeviceMemory::offer(const MemoryRequest& request, std::uint32_t id) {
  id_ = id;
  device_ = request.device;
  mine_.clear();
  refused_ = nullptr;
  try {
    device::Driver& driver = device::open(device_);
    parts_ = parts_of(request, endpoint_.rank(), endpoint_.size(), driver.page_bytes());
    mine_ = driver.offer(parts_);
  } catch (const Error&) {  // of this rank: the others learn of it
    refused_ = std::current_exception();
  }
  if (endpoint_.rank() != 0) {
    send(*endpoint_.links().front(), descriptors_of(mine_));
  }
}

std::shared_ptr<device::Mapping> DeviceMemory::map() {
  const std::vector<FileDescriptor> offers = exchange();
  if (refused_) {
    std::rethrow_exception(std::exchange(refused_, nullptr));
  }
  return offers.size() == parts_.blocks.size() ? device::driver(device_).map(parts_, offers)
                                               : nullptr;
}

std::vector<FileDescriptor> DeviceMemory::exchange() {
  if (endpoint_.rank() != 0) {
    mine_.clear();  // they come back with the others'
    return receive(*endpoint_.links().front());
  }
  std::vector<FileDescriptor> offers = std::move(mine_);
  bool all = !refused_ && offers.size() == parts_.made_by(0);
  for (int rank = 1; rank < endpoint_.size(); ++rank) {
    std::vector<FileDescriptor> theirs = receive(*endpoint_.links()[index(rank)]);
    all = all && theirs.size() == parts_.made_by(rank);
    std::ranges::move(theirs, std::back_inserter(offers));
  }
  if (!all) {
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
