#include "comm/shm/shm_communicator.h"

#include <cstring>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// A shared buffer's memory and its entry in the station, both gone with the last handle.
class ShmBuffer final : public SharedBuffer::Impl {
 public:
  ShmBuffer(std::shared_ptr<Progress> progress,
            std::uint32_t id,
            std::shared_ptr<Mapping> mapping,
            std::size_t stride,
            std::size_t bytes)
      : progress_(std::move(progress)),
        id_(id),
        mapping_(std::move(mapping)),
        stride_(stride),
        bytes_(bytes) {
    progress_->station().add_buffer(id_, mapping_, stride_);
  }
  ~ShmBuffer() override { progress_->station().remove_buffer(id_); }
  ShmBuffer(const ShmBuffer&) = delete;
  ShmBuffer& operator=(const ShmBuffer&) = delete;

  std::byte* data(int rank) const override {
    return mapping_->data() + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t size_bytes() const override { return bytes_; }
  const std::byte* read_only() override { return mapping_->read_only(); }
  int rank() const override { return progress_->station().rank(); }

 private:
  std::shared_ptr<Progress> progress_;
  std::uint32_t id_;
  std::shared_ptr<Mapping> mapping_;
  std::size_t stride_;
  std::size_t bytes_;
};

// What rank 0 sends with a new buffer's descriptor.
struct BufferNotice {
  std::uint32_t id;
  std::uint32_t created;  // 0: rank 0 has no memory, and no descriptor comes with this
};

// How each rank fared, gathered so that all succeed or all fail.
struct Outcome {
  char failure[512];  // empty: it has its memory
};

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(Membership membership, ProgressOptions options)
      : progress_(std::make_shared<Progress>(std::move(membership), std::move(options))),
        last_buffer_(progress_->station().first_count()) {
    progress_->start_helper();
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): shared_from_this() of what is owned does not throw
  ~ShmCommunicator() override { progress_->close(); }

  int rank() const override { return progress_->station().rank(); }
  int size() const override { return progress_->station().size(); }
  CommUse use() const override { return progress_->use(); }
  void abort(const std::string& reason) override {
    end({CommError::Reason::kAborted, rank(), reason});
  }
  void end(const CommError& error) { progress_->end(error); }
  int sum_group() const override { return progress_->station().sum_group(); }

  // One memory object for all ranks: rank 0 creates it and hands out its descriptor, each rank
  // gives its own part pages, on its own memory node.
  SharedBuffer allocate(std::size_t bytes) override {
    const std::uint32_t id = ++last_buffer_;
    const std::size_t stride =
        round_up(std::max<std::size_t>(bytes, 1), SharedBuffer::page_bytes());
    const std::size_t total = stride * static_cast<std::size_t>(size());
    Outcome outcome{};
    FileDescriptor memory;
    if (rank() == 0) {
      memory = create_and_send(id, total, &outcome);
    }
    // Carries the size, so that ranks that ask for different sizes are told.
    submit({.kind = OpKind::kAllocate, .total = static_cast<std::int64_t>(bytes)}).wait();
    if (rank() != 0) {
      memory = receive(id, &outcome);
    }
    std::shared_ptr<Mapping> mapping;
    if (memory.valid()) {
      try {
        reserve_pages(memory.get(), static_cast<std::size_t>(rank()) * stride, stride);
        mapping = Mapping::map(memory, total);
      } catch (const MemoryError& error) {
        std::strncpy(outcome.failure, error.what(), sizeof(outcome.failure) - 1);
      }
    }
    agree(outcome);
    return SharedBuffer(
        std::make_shared<ShmBuffer>(progress_, id, std::move(mapping), stride, bytes));
  }

 protected:
  Work submit(Operation operation) override { return progress_->issue(std::move(operation)); }

 private:
  FileDescriptor create_and_send(std::uint32_t id, std::size_t total, Outcome* outcome) {
    FileDescriptor memory;
    try {
      check_available(total);  // of all ranks together, before they all take their part
      memory = create_memory(total);
    } catch (const MemoryError& error) {
      std::strncpy(outcome->failure, error.what(), sizeof(outcome->failure) - 1);
    }
    const BufferNotice notice{id, memory.valid() ? 1U : 0U};
    const std::vector<int> fds =
        memory.valid() ? std::vector<int>{memory.get()} : std::vector<int>{};
    for (const Channel& link : progress_->station().links()) {
      if (link.valid()) {
        // A rank that does not take it is dead or stuck, which the operation that follows finds.
        link.send(&notice, sizeof(notice), fds, Deadline(progress_->options().timeout));
      }
    }
    return memory;
  }

  FileDescriptor receive(std::uint32_t id, Outcome* outcome) {
    BufferNotice notice{};
    std::vector<FileDescriptor> fds;
    const bool came = progress_->station().links().front().receive(
        &notice, sizeof(notice), &fds, Deadline(progress_->options().timeout));
    TRIREME_ASSERT(
        came && notice.id == id, "the descriptor of shared buffer #", id, " did not arrive");
    if (notice.created == 0) {
      return {};
    }
    if (fds.size() != 1) {
      constexpr char kText[] =
          "the descriptor of the memory was lost: raise the limit on open files (ulimit -n)";
      std::strncpy(outcome->failure, kText, sizeof(outcome->failure) - 1);
      return {};
    }
    return std::move(fds.front());
  }

  void agree(const Outcome& outcome) {
    std::vector<Outcome> outcomes(static_cast<std::size_t>(size()));
    constexpr std::int64_t kBytes = sizeof(Outcome);
    all_gather({&outcome, kBytes, Dtype::kUint8}, {outcomes.data(), kBytes * size(), Dtype::kUint8})
        .wait();
    for (int peer = 0; peer < size(); ++peer) {
      const char* failure = outcomes[static_cast<std::size_t>(peer)].failure;
      if (failure[0] != '\0') {
        throw MemoryError(concat("rank ", peer, " of ", size(), ": ", failure));
      }
    }
  }

  std::shared_ptr<Progress> progress_;
  std::uint32_t last_buffer_;
};

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(Membership membership,
                                                    ProgressOptions options) {
  return std::make_unique<ShmCommunicator>(std::move(membership), std::move(options));
}

void end_shm_communicator(Communicator& communicator, const CommError& error) {
  static_cast<ShmCommunicator&>(communicator).end(error);
}

}  // namespace trireme::detail
