#include "comm/shm/shm_backend.h"

#include <algorithm>
#include <locale>
#include <sstream>
#include <thread>
#include <utility>

#include <sched.h>

#include "comm/queue/blame.h"
#include "comm/queue/waiting.h"
#include "comm/rendezvous/fixed_text.h"
#include "comm/shm/collectives.h"
#include "comm/shm/device_memory.h"
#include "comm/shm/endpoint.h"
#include "comm/shm/matching.h"
#include "comm/shm/messages.h"
#include "comm/shm/named_collectives.h"
#include "device/host/segment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// A thread that rests because too many operations are in flight marks itself in the upper half of
// `sleeping`: only completions, which otherwise ring nobody, can wake it.
constexpr std::uint32_t kSleeper = 1;
constexpr std::uint32_t kRoomSleeper = 1 << 16;

constexpr Milliseconds kTimeToWrite{100};  // the reason into the control memory

constexpr std::uint64_t kSaidOnce = std::uint64_t{1} << 32;  // RankBlock::waits_for
constexpr Milliseconds kTimeToSayAgain{150};

// The parts of all ranks, as this one sees them.
struct MappedParts {
  std::shared_ptr<device::Mapping> mapping;
  std::vector<std::size_t> begins;  // of each part, and the end of the last
  std::size_t bytes = 0;            // of this rank's that are used
  Device device{};
};

// A shared buffer's memory and its entry in the endpoint, both gone with the last handle.
class ShmBuffer final : public SharedBuffer::Impl {
 public:
  ShmBuffer(std::shared_ptr<Endpoint> endpoint, std::uint32_t id, MappedParts parts)
      : endpoint_(std::move(endpoint)), id_(id), parts_(std::move(parts)) {
    endpoint_->add_buffer(id_, parts_.mapping, parts_.begins);
  }
  ~ShmBuffer() override { endpoint_->remove_buffer(id_); }
  ShmBuffer(const ShmBuffer&) = delete;
  ShmBuffer& operator=(const ShmBuffer&) = delete;

  std::byte* data(int rank) const override {
    return parts_.mapping->data() + parts_.begins[index(rank)];
  }
  std::size_t size_bytes() const override { return parts_.bytes; }
  std::size_t taken_bytes() const override { return parts_.mapping->size_bytes(); }
  const std::byte* read_only() override { return parts_.mapping->read_only(); }
  int rank() const override { return endpoint_->rank(); }
  Device device() const override { return parts_.device; }

 private:
  std::shared_ptr<Endpoint> endpoint_;
  std::uint32_t id_;
  MappedParts parts_;
};

// What rank 0 sends with a new buffer's descriptor.
struct BufferNotice {
  std::uint32_t id;
  std::uint32_t created;  // 0: rank 0 has no memory, and no descriptor comes with this
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(Membership membership, Algorithm algorithm, const QueueOptions& options)
      : timeout_(options.timeout),
        folder_(options.flight_folder),
        group_(options.group),
        writes_summary_(!options.quiet && !options.part),
        endpoint_(std::make_shared<Endpoint>(std::move(membership))),
        collectives_(*endpoint_),
        messages_(*endpoint_),
        last_buffer_(endpoint_->first_count()),
        device_memory_(*endpoint_, options.timeout) {
    if (needs_lanes(algorithm)) {
      named_.emplace(*endpoint_, algorithm, collectives_);
    }
  }

  int rank() const override { return endpoint_->rank(); }
  int size() const override { return endpoint_->size(); }
  int world_rank(int rank) const override { return endpoint_->world_rank(rank); }
  std::string name(int rank) const override { return endpoint_->name(rank); }
  int sum_group() const override { return endpoint_->sum_group(); }

  // --- operations

  Steps start(const Call& call) override {
    switch (call.operation.kind) {
      case OpKind::kSend:
        return messages_.send(call);
      case OpKind::kRecv:
        return messages_.recv(call);
      default:
        break;
    }
    if (named_) {
      return named_->start(call);
    }
    collectives_.publish(call);
    return collectives_.run(call);
  }
  bool pump() override { return named_ && named_->pump(); }

  void completed(const Call& call) override {
    endpoint_->self().completed.store(endpoint_->sequence_of(call.number),
                                      std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) {
      if (endpoint_->control().rank(peer).sleeping.load(std::memory_order_seq_cst) >=
          kRoomSleeper) {
        endpoint_->ring(peer);
      }
    }
  }

  // A slot is free when everyone has completed the collective that it described.
  std::vector<int> without_room(std::uint64_t number) const override {
    std::vector<int> ranks;
    for (int peer = 0; number > kSlots && peer < size(); ++peer) {
      if (!endpoint_->completed(peer, endpoint_->sequence_of(number - kSlots))) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

  // --- memory: one object for all ranks. Rank 0 creates it and hands out its descriptor, each rank
  // gives its own part pages, on its own memory node.

  void announce_memory(const MemoryRequest& request) override {
    ++last_buffer_;
    if (!request.device.is_host()) {
      device_memory_.offer(request, last_buffer_);
      return;
    }
    shortage_.clear();
    memory_.reset();
    if (rank() != 0) {
      return;
    }
    try {
      memory_ = std::move(device::driver({}).offer(host_parts(request)).front());
    } catch (const MemoryError& error) {
      shortage_ = error.what();
    }
    const BufferNotice notice{last_buffer_, memory_.valid() ? 1U : 0U};
    const std::vector<int> fds =
        memory_.valid() ? std::vector<int>{memory_.get()} : std::vector<int>{};
    for (const auto& link : endpoint_->links()) {
      if (link) {
        // A rank that does not take it is dead or stuck, which the operation that follows finds.
        link->send(&notice, sizeof(notice), fds, Deadline(timeout_));
      }
    }
  }

  std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest& request) override {
    if (!request.device.is_host()) {
      auto mapping = device_memory_.map();
      return mapping == nullptr  // the rank that has none says why
                 ? nullptr
                 : buffer_of(std::move(mapping), device_memory_.parts(), request);
    }
    if (rank() != 0) {
      receive_memory();
    }
    if (!shortage_.empty()) {
      throw MemoryError(shortage_);
    }
    const FileDescriptor memory = std::move(memory_);
    if (!memory.valid()) {
      return nullptr;  // rank 0 says why
    }
    const device::Parts parts = host_parts(request);
    return buffer_of(device::driver({}).map(parts, std::span(&memory, 1)), parts, request);
  }

  void check_memory(const Operation& op) const override {
    if (named_) {
      named_->refuse(op.device);
    }
    check_device_memory(*endpoint_, op);
  }

  // --- waiting: Note [doorbells] in endpoint.cc

  std::uint32_t announce_rest(bool for_room) override {
    RankBlock& self = endpoint_->self();
    self.sleeping.fetch_add(for_room ? kRoomSleeper : kSleeper, std::memory_order_seq_cst);
    return self.bell.load(std::memory_order_seq_cst);
  }
  void rest(std::uint32_t announced, Milliseconds most) override {
    endpoint_->sleep_on_bell(announced, static_cast<int>(most.count()));
  }
  void end_rest(bool for_room) override {
    endpoint_->self().sleeping.fetch_sub(for_room ? kRoomSleeper : kSleeper,
                                         std::memory_order_seq_cst);
  }
  bool rests_unlocked() const override { return true; }

  // --- failing: the first reason is in the control memory, for everyone

  bool was_told() const override {
    return abort_record().state.load(std::memory_order_acquire) == 2;
  }
  CommError told() const override {
    const AbortRecord& record = abort_record();
    return {static_cast<CommError::Reason>(record.reason),
            record.blamed,
            concat(text_of(record.message), " (found by rank ", record.reporter, ")")};
  }

  std::optional<CommError> loss(const std::vector<int>& missing) override {
    using Reason = CommError::Reason;
    // The dead before those who have left: one may have left because it found another dead.
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && endpoint_->has_ended(peer) && !endpoint_->has_left(peer)) {
        return lost_rank(Reason::kPeerDied, peer, endpoint_->plain_name(peer));
      }
    }
    for (const int peer : missing) {
      // In good order; it is missed only by those who wait for it.
      if (peer != rank() && endpoint_->has_left(peer)) {
        return lost_rank(Reason::kPeerLeft, peer, endpoint_->plain_name(peer));
      }
    }
    return std::nullopt;
  }

  void say_waits_for(int rank) override {
    waits_said_ += kSaidOnce;
    endpoint_->self().waits_for.store(waits_said_ | static_cast<std::uint64_t>(rank + 1),
                                      std::memory_order_relaxed);
  }
  std::vector<int> behind(const std::vector<int>& late) override {
    const auto all_said = [&] {
      std::vector<std::uint64_t> said;
      said.reserve(index(size()));
      for (int peer = 0; peer < size(); ++peer) {
        said.push_back(endpoint_->control().rank(peer).waits_for.load(std::memory_order_relaxed));
      }
      return said;
    };
    const auto before = all_said();
    std::this_thread::sleep_for(kTimeToSayAgain);
    const auto now = all_said();
    return follow(late, size(), [&](const std::vector<int>& ranks) {
      std::vector<int> next;
      next.reserve(ranks.size());
      for (const int each : ranks) {
        const bool says = now[index(each)] != before[index(each)] || each == rank();
        next.push_back(says ? static_cast<int>(now[index(each)] % kSaidOnce) - 1 : -1);
      }
      return next;
    });
  }

  std::string last_operations() const override {
    std::string text = "; last operations:";
    for (int peer = 0; peer < size(); ++peer) {
      const std::uint64_t issued = endpoint_->control().rank(peer).issued.load();
      text += concat(
          peer == 0 ? " " : ", ", "rank ", peer, " ", describe_slot(*endpoint_, peer, issued));
    }
    return text;
  }

  bool settle(const CommError& failure) override {
    AbortRecord& record = abort_record();
    std::uint32_t none = 0;
    found_first_ = record.state.compare_exchange_strong(none, 1);
    if (!found_first_) {
      // The first reason is everyone's: those who found it may have left meanwhile, and would seem
      // to be this one's. Whoever writes it is done at once, unless it dies there.
      const Deadline patience(kTimeToWrite);
      while (!was_told() && !patience.passed()) {
        sched_yield();
      }
      return false;
    }
    record.reporter = rank();
    record.blamed = failure.peer();
    record.reason = static_cast<std::int32_t>(failure.reason());
    shortened(failure.what(), sizeof(record.message) - 1)
        .copy(record.message, sizeof(record.message) - 1);
    record.state.store(2, std::memory_order_seq_cst);
    endpoint_->ring_all();
    return true;
  }

  // Written by the rank that found the failure, for all ranks: the dead cannot write their own.
  void spread(const CommError& failure) override {
    if (!found_first_ || !writes_summary_ || failure.reason() == CommError::Reason::kStopped) {
      return;
    }
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << failure.what() << "\n";
    for (int peer = 0; peer < size(); ++peer) {
      const RankBlock& block = endpoint_->control().rank(peer);
      const std::uint64_t issued = block.issued.load();
      const std::uint32_t in_flight = endpoint_->sequence_of(issued) - block.completed.load();
      text << endpoint_->name(peer) << ": issued " << describe_slot(*endpoint_, peer, issued)
           << ", completed #" << issued - in_flight << "\n";
    }
    folder_.write_summary(group_, text.str());
  }

  void close(bool /*clean*/) override { endpoint_->leave(); }

 private:
  AbortRecord& abort_record() const { return endpoint_->control().header().abort; }

  device::Parts host_parts(const MemoryRequest& request) const {
    return parts_of(request, rank(), size(), SharedBuffer::page_bytes());
  }
  std::shared_ptr<SharedBuffer::Impl> buffer_of(std::shared_ptr<device::Mapping> mapping,
                                                const device::Parts& parts,
                                                const MemoryRequest& request) const {
    const std::size_t bytes =
        request.run.empty() ? request.bytes : static_cast<std::size_t>(request.run[index(rank())]);
    return std::make_shared<ShmBuffer>(
        endpoint_,
        last_buffer_,
        MappedParts{std::move(mapping), parts.begins, bytes, request.device});
  }

  void receive_memory() {
    BufferNotice notice{};
    std::vector<FileDescriptor> fds;
    const bool came =
        endpoint_->links().front()->receive(&notice, sizeof(notice), &fds, Deadline(timeout_));
    TRIREME_ASSERT(came && notice.id == last_buffer_,
                   "the descriptor of shared buffer #{} did not arrive",
                   {last_buffer_});
    if (notice.created == 0) {
      return;
    }
    if (fds.size() != 1) {
      shortage_ =
          "the descriptor of the memory was lost: raise the limit on open files (ulimit -n)";
      return;
    }
    memory_ = std::move(fds.front());
  }

  const Milliseconds timeout_;
  const FlightFolder folder_;
  const std::string group_;
  const bool writes_summary_;
  const std::shared_ptr<Endpoint> endpoint_;
  Collectives collectives_;
  Messages messages_;
  std::optional<NamedCollectives> named_;  // where the algorithm has a name
  bool found_first_ = false;

  // Of the allocation at hand, which one thread makes at a time:
  std::uint32_t last_buffer_;
  std::uint64_t waits_said_ = 0;
  FileDescriptor memory_;
  std::string shortage_;  // why there is none
  DeviceMemory device_memory_;
};

}  // namespace

std::shared_ptr<OperationQueue> make_shm_queue(Membership membership,
                                               Algorithm algorithm,
                                               QueueOptions options) {
  const bool oversubscribed = membership.oversubscribed;
  options.spins = oversubscribed ? 0 : 8000;
  options.yields = oversubscribed ? 2 : 50;
  auto backend = std::make_unique<ShmBackend>(std::move(membership), algorithm, options);
  return std::make_shared<OperationQueue>(std::move(backend), std::move(options));
}

}  // namespace trireme::detail
