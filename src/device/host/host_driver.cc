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
  FileDescriptor offer(const Parts& parts) override {
    if (parts.rank != 0) {
      return {};
    }
    check_available(total(parts));  // of all ranks together, before they all take their part
    return create_memory(total(parts));
  }

  std::shared_ptr<Mapping> map(const Parts& parts,
                               std::span<const FileDescriptor> offers) override {
    const FileDescriptor& memory = offers.front();
    // On this rank's memory node.
    reserve_pages(memory.get(), static_cast<std::size_t>(parts.rank) * parts.bytes, parts.bytes);
    return Segment::map(memory, total(parts));
  }

 private:
  static std::size_t total(const Parts& parts) {
    return static_cast<std::size_t>(parts.size) * parts.bytes;
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
