#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/parts.h"
#include "device/stream.h"
#include "trireme/core/device.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::device {

// Who can reach memory besides the device it is for.
enum class Reach {
  kDevice,   // nobody
  kVisible,  // the host's memory, in which the device writes: results, and what is to be sent
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

  // How often memory was asked for so far, shared or not: a steady step asks for none.
  std::uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

  // The stream of whoever needs none of its own.
  virtual Stream& stream() = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // What tells its device from all others, whatever number a process knows it by.
  virtual std::string identity() const = 0;

  // Zeros, aligned to a page. Throws MemoryError. (device/buffer.h owns it.)
  virtual std::byte* allocate(std::size_t bytes, Reach reach) = 0;
  virtual void release(std::byte* data, std::size_t bytes, Reach reach) noexcept = 0;

  // What the blocks of shared memory are a multiple of.
  virtual std::size_t page_bytes() const = 0;
  // Shared memory, in two steps, between which the ranks hand each other their descriptors. `offer`
  // is for the blocks that this rank makes, in their order (the host's: rank 0 has one for all);
  // `map` takes those of all ranks, rank after rank, and gives the blocks of this one their pages.
  // Both throw MemoryError, and then nothing has changed.
  virtual std::vector<FileDescriptor> offer(const Parts& parts) = 0;
  virtual std::shared_ptr<Mapping> map(const Parts& parts,
                                       std::span<const FileDescriptor> offers) = 0;

 protected:
  void note_taken() { taken_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> taken_{0};
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
