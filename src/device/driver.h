#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "device/stream.h"
#include "trireme/core/device.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::device {

// Who can reach memory besides the device it is for.
enum class Reach {
  kDevice,   // nobody
  kVisible,  // the host's memory, in which the device writes: results, and what is to be sent
};

// Memory of which each of `size` processes has a part of `bytes` (whole pages).
struct Parts {
  int rank = 0;
  int size = 1;
  std::size_t bytes = 0;
};

// All parts of shared memory as one run of addresses, rank after rank.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t size_bytes() const = 0;
  // The same memory again, where a write is a fault. Throws MemoryError.
  virtual const std::byte* read_only() = 0;
};

// What a kind of device has to supply. One for each device, for as long as the process lives.
class Driver {
 public:
  virtual ~Driver() = default;

  // The stream of whoever needs none of its own.
  virtual Stream& stream() = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;

  // Zeros, aligned to a page. Throws MemoryError. (device/buffer.h owns it.)
  virtual std::byte* allocate(std::size_t bytes, Reach reach) = 0;
  virtual void release(std::byte* data, std::size_t bytes, Reach reach) noexcept = 0;

  // What the parts of shared memory are a multiple of.
  virtual std::size_t page_bytes() const = 0;
  // Shared memory, in two steps, between which the ranks hand each other their descriptors. `offer`
  // is this rank's, invalid where one of another rank is for all; `map` takes those of all ranks
  // and gives this rank's part its pages. Both throw MemoryError, and then nothing has changed.
  virtual FileDescriptor offer(const Parts& parts) = 0;
  virtual std::shared_ptr<Mapping> map(const Parts& parts,
                                       std::span<const FileDescriptor> offers) = 0;
};

// Throws ConfigError where this program has no driver for it.
Driver& driver(Device device);
// The same, but gets the driver of a GPU first where this program does not have it yet. Throws
// ConfigError where there is no such GPU.
Driver& open(Device device);
// Null where this program has none.
Driver* find_driver(Device device);
// Makes `driver` the one for `device`, or nobody.
void install(Device device, std::shared_ptr<Driver> driver);

}  // namespace trireme::device
