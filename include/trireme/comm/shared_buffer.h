#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trireme/core/span.h"

namespace trireme {

// Memory of every rank of a communicator that the others can read: `size_bytes()` for each rank,
// allocated together by `Communicator::allocate`. Collectives on spans inside it work in place,
// with no copy in and none out. Zero at first. A handle; copies share the memory, which is
// returned when the last handle on each rank is gone: drop it on all ranks, after the operations
// that use it are finished.
class SharedBuffer {
 public:
  // What a backend keeps for it.
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual std::byte* data(int rank) const = 0;
    virtual std::size_t size_bytes() const = 0;
    virtual std::size_t taken_bytes() const { return size_bytes(); }
    virtual int rank() const = 0;
    // A second mapping of all ranks' parts that nobody can write through; made when first asked
    // for.
    virtual const std::byte* read_only() = 0;
    virtual Device device() const { return {}; }
  };

  SharedBuffer() = default;
  explicit SharedBuffer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // This rank's part, aligned to a page.
  std::byte* data() const { return impl_->data(impl_->rank()); }
  // Rank `rank`'s part. Reading while its owner writes is a race: order it with a collective.
  const std::byte* peer(int rank) const { return impl_->data(rank); }
  // All parts as one run of bytes, rank after rank, for memory that belongs to all: who writes what
  // is then the callers' agreement. One run only where size_bytes() is a multiple of page_bytes(),
  // or where Communicator::allocate_run has made it.
  std::byte* whole() const { return impl_->data(0); }
  // The same bytes at an address through which they cannot be written.
  const std::byte* whole_read_only() const { return impl_->read_only(); }
  static std::size_t page_bytes();
  std::size_t size_bytes() const { return impl_ ? impl_->size_bytes() : 0; }
  // What a run of Communicator::allocate_run takes of the machine: whole pages.
  std::size_t taken_bytes() const { return impl_ ? impl_->taken_bytes() : 0; }
  // Where it is. On a GPU, the parts of other ranks can only be read.
  Device device() const { return impl_ ? impl_->device() : Device{}; }
  bool valid() const { return impl_ != nullptr; }

  // `numel` elements of this rank's part from byte `offset` on; throws ConfigError if they do
  // not fit. The span keeps the buffer alive.
  Span span(Dtype dtype, std::int64_t numel, std::size_t offset = 0) const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace trireme
