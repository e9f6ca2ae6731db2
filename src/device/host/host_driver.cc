#include "device/host/host_driver.h"

#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

#include "device/host/host_stream.h"
#include "device/host/segment.h"
#include "trireme/core/error.h"

namespace trireme::device {
namespace {

class HostDriver final : public Driver {
 public:
  Stream& stream() override { return host(); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  std::string identity() const override { return "host"; }

  std::byte* allocate(std::size_t bytes, Reach /*reach*/) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw MemoryError(
          detail::concat("memory of {} bytes was requested and refused: {}: free memory, raise the "
                         "limit (ulimit -v), or use a higher ZeRO stage or more ranks",
                         {bytes, detail::errno_text(errno)}));
    }
    madvise(data, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }

  void release(std::byte* data, std::size_t bytes, Reach /*reach*/) noexcept override {
    munmap(data, bytes);
  }

  std::size_t page_bytes() const override {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }

  // One memory object for all ranks, of rank 0: a mapping then is one, however many ranks there
  // are, and a process may have only so many.
  std::vector<FileDescriptor> offer(const Parts& parts) override {
    std::vector<FileDescriptor> offers;
    if (parts.rank == 0) {
      check_available(parts.bytes());  // of all ranks together, before they all take their part
      offers.push_back(create_memory(parts.bytes()));
    }
    return offers;
  }

  std::shared_ptr<Mapping> map(const Parts& parts,
                               std::span<const FileDescriptor> offers) override {
    const FileDescriptor& memory = offers.front();
    std::size_t at = 0;
    for (const Block& block : parts.blocks) {
      if (block.maker == parts.rank) {  // on this rank's memory node
        reserve_pages(memory.get(), at, block.bytes);
      }
      at += block.bytes;
    }
    return Segment::map(memory, parts.bytes());
  }
};

}  // namespace

Driver& host_driver() {
  static auto* driver = new HostDriver;  // never destroyed: memory may outlive every static object
  return *driver;
}

Stream& host() {
  static auto* stream = new HostStream;
  return *stream;
}

}  // namespace trireme::device
