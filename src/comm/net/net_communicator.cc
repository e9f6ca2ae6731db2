#include "comm/net/net_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include <unistd.h>

#include "comm/net/remote_window.h"
#include "comm/shm/segment.h"
#include "comm/shm/shm_communicator.h"
#include "comm/waiting.h"
#include "trireme/core/error.h"
#include "trireme/core/host_memory.h"

namespace trireme::detail {
namespace {

// From this many ranks on, telling everyone takes longer than passing on.
constexpr int kManyRanks = 17;

std::vector<int> machines_of(const std::vector<Member>& members) {
  std::vector<int> machines;
  machines.reserve(members.size());
  for (const Member& member : members) {
    machines.push_back(member.node);
  }
  return machines;
}

// What goes before a message from rank to rank; short ones are in it.
struct MessageHeader {
  Dtype dtype;
  std::int32_t tag;
  std::int64_t numel;
};

constexpr std::size_t kEagerMessageBytes = 16 << 10;

constexpr auto kTimeForGoodbyes = std::chrono::milliseconds(100);
// From a goodbye until the rank is blamed for it. It may have left because another is dead, whose
// connection breaks at the same time; and over another interface, what it sent before may come
// later than its goodbye.
constexpr auto kTimeForReasons = std::chrono::milliseconds(300);

// The time since this was first asked about `since`.
Clock::duration time_since(Clock::time_point& since) {
  const auto now = Clock::now();
  if (since == Clock::time_point{}) {
    since = now;
  }
  return now - since;
}

// A process that ends through exit() without destroying its World has still left in good order.
struct AtExit {
  std::mutex mutex;
  std::set<NetCommunicator*> all;  // guarded by mutex
};

AtExit& at_exit() {
  static auto* communicators = new AtExit;  // never destroyed: it is used while statics are
  return *communicators;
}

void finish_at_exit() {
  const std::lock_guard lock(at_exit().mutex);
  for (NetCommunicator* communicator : at_exit().all) {
    communicator->finish();
  }
}

}  // namespace

NetCommunicator::NetCommunicator(std::shared_ptr<Transport> transport, NetOptions options)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      wire_(transport_, options_.ranks, options_.channel, machines_of(options_.members)),
      pool_(wire_.size()),
      name_([this](int rank) { return name(rank); }),
      lost_since_(static_cast<std::size_t>(wire_.size())),
      left_since_(static_cast<std::size_t>(wire_.size())),
      owner_(getpid()) {
  if (options_.channel == 0) {
    control_ = std::make_unique<NewsBoard>(wire_);
    static const int registered = std::atexit(finish_at_exit);
    static_cast<void>(registered);
    const std::lock_guard lock(at_exit().mutex);
    at_exit().all.insert(this);
  }
  queue_ = std::make_shared<OperationQueue>(*this, options_.queue);
  queue_->start_helper();
}

NetCommunicator::~NetCommunicator() {
  finish();
  const std::lock_guard lock(at_exit().mutex);
  at_exit().all.erase(this);
}

void NetCommunicator::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  if (getpid() != owner_) {
    transport_->abandon();  // a forked child does not speak for its parent
    keep_in_forked_child(queue_);
    return;
  }
  if (!queue_->close()) {
    break_off();
  } else if (control_ && !abandoned_) {
    control_->say_left();
  }
}

void NetCommunicator::break_off() {
  if (control_ && !abandoned_ && transport_->sends_without_moving()) {
    control_->say_left_in_passing();
  }
  abandon();
}

void NetCommunicator::abandon() {
  abandoned_ = true;
  transport_->abandon();
}

std::string NetCommunicator::name(int rank) const {
  const Member& member = options_.members[static_cast<std::size_t>(wire_.world_rank(rank))];
  return concat("rank ",
                member.rank,
                " (pid ",
                member.pid,
                " on machine ",
                member.node,
                ", ",
                member.host,
                ")");
}

CommUse NetCommunicator::use() const {
  CommUse use = queue_->use();
  use.network_bytes = wire_.bytes_between_machines() + *window_bytes_;
  return use;
}

std::string NetCommunicator::last_operations() const {
  return concat("; last operation of rank ",
                wire_.world_rank(rank()),
                ": ",
                last_issued_.text(),
                ", completed #",
                queue_->completed());
}

bool NetCommunicator::pump() {
  bool moved = wire_.transport().progress();
  if (control_) {
    moved |= control_->look(last_);
  }
  return moved;
}

std::optional<CommError> NetCommunicator::loss(const std::vector<int>& missing) {
  if (!control_) {
    return std::nullopt;  // a part of another, which looks
  }
  if (control_->failure()) {
    return control_->failure();
  }
  // One that is gone without a word is a failure for everyone, whomever they wait for.
  for (int peer = 0; peer < size(); ++peer) {
    const auto why = wire_.transport().lost(wire_.world_rank(peer));
    if (why && peer != rank() && !control_->has_left(peer)) {
      // Its goodbye may still be on its way, over another interface.
      if (time_since(lost_since_[static_cast<std::size_t>(peer)]) < kTimeForGoodbyes) {
        continue;
      }
      return CommError(CommError::Reason::kPeerDied,
                       wire_.world_rank(peer),
                       concat("the connection to ",
                              name(peer),
                              " is lost (",
                              *why,
                              "): it crashed or was killed, or its machine is gone"));
    }
  }
  for (const int peer : missing) {
    if (control_->has_left(peer) &&
        time_since(left_since_[static_cast<std::size_t>(peer)]) >= kTimeForReasons) {
      return CommError(
          CommError::Reason::kPeerLeft,
          wire_.world_rank(peer),
          concat(name(peer), " left the world while others were still waiting for it"));
    }
  }
  return std::nullopt;
}

void NetCommunicator::spread(const CommError& error) {
  if (!control_) {
    return;  // a part of another, which spreads it
  }
  if (!control_->failure()) {
    tell(error);
  }
  abandon();
  if (machine_) {
    end_shm_communicator(*machine_, error_inside_machine(error, options_.members, rank()));
  }
}

CommError error_inside_machine(const CommError& error,
                               const std::vector<Member>& members,
                               int rank) {
  const auto blamed = static_cast<std::size_t>(error.peer());
  const bool is_here =
      error.peer() >= 0 && members[blamed].node == members[static_cast<std::size_t>(rank)].node;
  return {error.reason(), is_here ? members[blamed].local_rank : -1, error.what()};
}

void NetCommunicator::tell(const CommError& error) {
  const std::string last = last_();
  control_->say_failed(error, last);
  std::ostringstream text;
  text << error.what() << "\n";
  for (int peer = 0; peer < size(); ++peer) {
    text << name(peer) << ": ";
    if (peer == rank()) {
      text << "issued " << last;
    } else if (control_->has_left(peer)) {
      text << "has left the world";
    } else if (control_->last_of(peer)) {
      text << "issued " << *control_->last_of(peer);
    } else {
      text << "did not answer";
    }
    text << "\n";
  }
  options_.queue.flight_folder.write_or_warn("flight-summary.txt", text.str());
}

Work NetCommunicator::submit(Operation operation) {
  return issue(std::move(operation), std::nullopt);
}

Work NetCommunicator::submit_as(Operation operation, const CallFacts& outer) {
  return issue(std::move(operation), outer);
}

Work NetCommunicator::issue(Operation operation, std::optional<CallFacts> outer) {
  return queue_->issue(
      std::move(operation), [&](const Operation& op, std::uint32_t sequence) -> Steps {
        if (op.kind == OpKind::kSend) {
          return send(op);
        }
        if (op.kind == OpKind::kRecv) {
          return recv(op);
        }
        last_issued_ = {sequence, facts_of(op)};
        const Announcing announcing =
            algorithm_for(op) == Algorithm::kDoubling ? Announcing::kPassedOn : Announcing::kToAll;
        auto call = std::make_unique<NetCall>(
            wire_, pool_, op, sequence, announcing, options_.sum_group, outer);
        if (announcing == Announcing::kToAll) {
          call->announce_to_all();
        }
        return run(std::move(call), announcing);
      });
}

Algorithm NetCommunicator::algorithm_for(const Operation& op) const {
  if (options_.algorithm == Algorithm::kAutomatic) {
    return size() >= kManyRanks ? Algorithm::kDoubling : Algorithm::kDirect;
  }
  // What has accumulators, absent terms or another type for its sums is made in one order only.
  if (options_.algorithm == Algorithm::kRing && reduces(op.kind) &&
      (op.terms.accumulate ||
       (op.kind == OpKind::kReduceScatter && op.output.dtype() != op.dtype))) {
    return Algorithm::kDirect;
  }
  return options_.algorithm;
}

Steps NetCommunicator::run(std::unique_ptr<NetCall> call, Announcing announcing) {
  if (announcing == Announcing::kPassedOn) {
    Part telling(announce_by_doubling(*call));
    co_await telling;
  }
  AllAnnounced announced(*call, name_);
  if (call->needs_announcements_only()) {
    co_await announced;
    finish_from_announcements(*call);
  } else {
    Part large(steps_for_large(*call, announced));
    co_await large;
  }
  // Everyone has issued the call by now, and takes the announcement.
  co_await Landed(call->announcements());
}

// What does not travel with the announcements.
Steps NetCommunicator::steps_for_large(NetCall& call, AllAnnounced& announced) {
  const Algorithm algorithm = algorithm_for(call.operation());
  switch (call.operation().kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      switch (algorithm) {
        case Algorithm::kRing:
          return ring_reduction(call, announced);
        case Algorithm::kAggregator:
          return aggregated_reduction(call, announced);
        default:
          return direct_reduction(call, announced);
      }
    case OpKind::kAllGather:
      return algorithm == Algorithm::kRing ? ring_all_gather(call, announced)
                                           : direct_all_gather(call, announced);
    case OpKind::kBroadcast:
      return tree_broadcast(call, announced);
    default:
      return direct_exchange(call, announced, name_);
  }
}

Steps NetCommunicator::send(const Operation& op) {
  const std::size_t bytes = op.input.size_bytes();
  const MessageHeader header{op.dtype, op.tag, op.input.numel()};
  const bool eager = bytes <= kEagerMessageBytes;
  std::vector<std::byte> first(sizeof(header) + (eager ? bytes : 0));
  std::memcpy(first.data(), &header, sizeof(header));
  if (eager && bytes > 0) {
    std::memcpy(first.data() + sizeof(header), op.input.bytes(), bytes);
  }
  Flights flights(wire_);
  flights.add(
      op.peer,
      wire_.send(
          op.peer, Wire::Stream::kHeader, first.data(), first.size(), Transport::Length::kUpTo));
  if (!eager) {
    flights.add(op.peer, wire_.send(op.peer, Wire::Stream::kMessage, op.input.bytes(), bytes));
  }
  co_await Landed(flights);
}

Steps NetCommunicator::recv(const Operation& op) {
  const std::size_t bytes = op.output.size_bytes();
  const auto first =
      std::make_unique_for_overwrite<std::byte[]>(sizeof(MessageHeader) + kEagerMessageBytes);
  Flights arriving(wire_);
  arriving.add(op.peer,
               wire_.receive(op.peer,
                             Wire::Stream::kHeader,
                             first.get(),
                             sizeof(MessageHeader) + kEagerMessageBytes,
                             Transport::Length::kUpTo));
  co_await Landed(arriving);
  MessageHeader header{};
  std::memcpy(&header, first.get(), sizeof(header));
  if (header.dtype != op.dtype || header.numel != op.output.numel() || header.tag != op.tag) {
    throw CommError(
        CommError::Reason::kMismatch,
        op.peer,
        concat("rank ",
               rank(),
               " called recv(",
               dtype_name(op.dtype),
               " x ",
               op.output.numel(),
               ", tag ",
               op.tag,
               ") from ",
               name(op.peer),
               ", whose next message is ",
               dtype_name(header.dtype),
               " x ",
               header.numel,
               ", tag ",
               header.tag,
               ": messages of a pair must be received in the order they were sent, with "
               "the same dtype, length and tag"));
  }
  if (bytes <= kEagerMessageBytes) {
    if (bytes > 0) {
      std::memcpy(op.output.bytes(), first.get() + sizeof(header), bytes);
    }
    co_return;
  }
  Flights data(wire_);
  data.add(op.peer, wire_.receive(op.peer, Wire::Stream::kMessage, op.output.bytes(), bytes));
  co_await Landed(data);
}

// Memory of this rank alone: the others are elsewhere.
class NetCommunicator::PrivateBuffer final : public SharedBuffer::Impl {
 public:
  PrivateBuffer(std::size_t bytes, int rank) : memory_(bytes), bytes_(bytes), rank_(rank) {}
  std::byte* data(int rank) const override {
    TRIREME_CHECK(rank == rank_,
                  "rank ",
                  rank_,
                  " cannot read the memory of rank ",
                  rank,
                  ": they share none; use a collective");
    return const_cast<HostMemory&>(memory_).data();
  }
  std::size_t size_bytes() const override { return bytes_; }
  int rank() const override { return rank_; }
  const std::byte* read_only() override { return memory_.data(); }

 private:
  HostMemory memory_;
  std::size_t bytes_;
  int rank_;
};

SharedBuffer NetCommunicator::allocate(std::size_t bytes) {
  Operation operation;
  operation.kind = OpKind::kAllocate;
  operation.total = static_cast<std::int64_t>(bytes);
  submit(std::move(operation)).wait();
  std::shared_ptr<PrivateBuffer> buffer;
  std::string failure;
  try {
    check_available(bytes);
    buffer = std::make_shared<PrivateBuffer>(bytes, rank());
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_memory(*this, failure);
  return SharedBuffer(std::move(buffer));
}

std::unique_ptr<Window> NetCommunicator::expose(const std::byte* data, std::size_t bytes) {
  return make_remote_window(*this,
                            *transport_,
                            options_.members,
                            options_.queue.timeout,
                            data,
                            bytes,
                            window_bytes_,
                            [queue = queue_] { return queue->find_failure(kTimeToFindFailures); });
}

void agree_on_memory(Communicator& ranks, const std::string& failure) {
  struct Outcome {
    char text[512];
  };
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks.size()));
  Outcome mine{};
  failure.copy(mine.text, sizeof(mine.text) - 1);
  constexpr std::int64_t kBytes = sizeof(Outcome);
  ranks
      .all_gather({&mine, kBytes, Dtype::kUint8},
                  {outcomes.data(), kBytes * ranks.size(), Dtype::kUint8})
      .wait();
  for (int peer = 0; peer < ranks.size(); ++peer) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(peer)];
    if (outcome.text[0] != '\0') {
      throw MemoryError(concat("rank ", peer, " of ", ranks.size(), ": ", outcome.text));
    }
  }
}

}  // namespace trireme::detail
