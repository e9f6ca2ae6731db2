#include "comm/hierarchy/hierarchical_communicator.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include <unistd.h>

#include "comm/hierarchy/hierarchical_collectives.h"
#include "comm/hierarchy/part_done.h"
#include "comm/net/remote_window.h"
#include "comm/shm/shm_communicator.h"
#include "comm/waiting.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kGrace{1500};

class HierarchicalCommunicator final : public Communicator, public QueueHost {
 public:
  HierarchicalCommunicator(const std::shared_ptr<Transport>& transport,
                           std::unique_ptr<Communicator> inside,
                           std::unique_ptr<Communicator> machine,
                           HierarchyOptions options)
      : options_(std::move(options)),
        inside_(std::move(inside)),
        machine_(std::move(machine)),
        rank_(transport->rank()),
        members_(options_.members),
        transport_(transport) {
    NetOptions flat;
    flat.members = members_;
    flat.ranks.resize(members_.size());
    std::iota(flat.ranks.begin(), flat.ranks.end(), 0);
    flat.algorithm = options_.algorithm;
    flat.sum_group = options_.sum_group;
    flat.queue = options_.queue;
    flat.queue.timeout = kForever;  // whoever waits here has the deadline
    flat.queue.quiet = true;
    flat.queue.helper_thread = false;
    flat_ = std::make_unique<NetCommunicator>(transport, flat);
    flat_->set_last(
        [this] { return concat(last_issued_.text(), ", completed #", queue_->completed()); });
    const bool even = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
      return member.local_size == self().local_size;
    });
    if (even && options_.algorithm == Algorithm::kAutomatic) {
      const MachineGrid grid{.machines = members_.back().node + 1,
                             .ranks_per_machine = self().local_size,
                             .node = self().node,
                             .local = self().local_rank};
      NetOptions column = flat;
      column.ranks.clear();
      for (int machine_number = 0; machine_number < grid.machines; ++machine_number) {
        column.ranks.push_back(grid.counterpart(machine_number));
      }
      column.channel = 1 + static_cast<std::uint32_t>(grid.local);
      column.sum_group = 1;
      between_ = std::make_unique<NetCommunicator>(transport, column);
      collectives_.emplace(grid, options_.sum_group, *inside_, *between_, *flat_);
    } else if (!even && rank_ == 0) {
      log(LogLevel::kInfo,
          "the machines have different numbers of ranks: all ranks communicate directly, without a "
          "hierarchy");
    }
    queue_ = std::make_shared<OperationQueue>(*this, options_.queue);
    queue_->start_helper();
  }
  HierarchicalCommunicator(const HierarchicalCommunicator&) = delete;
  HierarchicalCommunicator& operator=(const HierarchicalCommunicator&) = delete;
  ~HierarchicalCommunicator() override {
    if (getpid() != owner_) {
      flat_->abandon();
      keep_in_forked_child(queue_);
    } else if (!queue_->close()) {
      flat_->break_off();
    }
    // The one that says goodbye goes last.
    between_.reset();
    flat_.reset();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Communicator& machine() override { return *machine_; }
  bool one_machine() const override { return false; }
  int sum_group() const override { return options_.sum_group; }
  void abort(const std::string& reason) override { queue_->abort(reason); }
  CommError fail(const CommError& failure) override {
    const bool died = failure.reason() == CommError::Reason::kPeerDied;
    try {
      queue_->fail_with(died ? lost_rank(failure.reason(), failure.peer(), name(failure.peer()))
                             : failure);
    } catch (const CommError& error) {
      return error;
    }
  }

  CommUse use() const override {
    CommUse use = queue_->use();
    use.network_bytes = flat_->use().network_bytes +
                        (between_ ? between_->use().network_bytes : 0) + *window_bytes_;
    return use;
  }

  SharedBuffer allocate(std::size_t bytes) override;
  std::unique_ptr<Window> expose(const std::byte* data, std::size_t bytes) override {
    return make_remote_window(
        *this,
        *transport_,
        members_,
        options_.queue.timeout,
        data,
        bytes,
        window_bytes_,
        [queue = queue_] { return queue->find_failure(kTimeToFindFailures); });
  }

  std::string name(int rank) const override { return flat_->name(rank); }

 protected:
  Work submit(Operation operation) override {
    return queue_->issue(std::move(operation), [&](const Operation& op, std::uint32_t sequence) {
      if (sequence != 0) {
        last_issued_ = {sequence, facts_of(op)};
      }
      return collectives_ ? collectives_->run(op, sequence) : run_flat(*flat_, op);
    });
  }

 private:
  const Member& self() const { return members_[index(rank_)]; }

  // --- the queue's host

  bool pump() override { return flat_->pump(); }
  void rest(Milliseconds) override {
    // Shared memory and network cannot be waited for at once: look often, but not all the time.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::optional<CommError> loss(const std::vector<int>& missing) override {
    return flat_->loss(missing);
  }
  Milliseconds grace(const std::vector<int>& missing) override {
    const bool all_here = std::all_of(missing.begin(), missing.end(), [&](int rank) {
      return members_[index(rank)].node == self().node;
    });
    return all_here ? kGrace : Milliseconds(0);
  }
  std::string last_operations() const override {
    return concat("; last operation of rank ",
                  rank_,
                  ": ",
                  last_issued_.text(),
                  ", completed #",
                  queue_->completed());
  }
  void spread(const CommError& error) override {
    flat_->spread(error);
    // Whoever waits for this rank inside its machine hears why it does not come, too.
    const CommError here = error_inside_machine(error, members_, rank_);
    end_shm_communicator(*inside_, here);
    end_shm_communicator(*machine_, here);
  }

  HierarchyOptions options_;
  std::unique_ptr<Communicator> inside_;
  std::unique_ptr<Communicator> machine_;
  int rank_;
  std::vector<Member> members_;
  const pid_t owner_ = getpid();
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<NetCommunicator> flat_;
  std::unique_ptr<NetCommunicator> between_;            // where there are collectives_
  std::optional<HierarchicalCollectives> collectives_;  // none: all goes through flat_
  std::shared_ptr<OperationQueue> queue_;
  LastCall last_issued_;
  std::shared_ptr<std::atomic<std::int64_t>> window_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

// The machine's shared memory, with the world's ranks.
class MachineBuffer final : public SharedBuffer::Impl {
 public:
  MachineBuffer(SharedBuffer buffer, int first, int count, int rank)
      : buffer_(std::move(buffer)), first_(first), count_(count), rank_(rank) {}
  std::byte* data(int rank) const override {
    TRIREME_CHECK(rank >= first_ && rank < first_ + count_,
                  "rank ",
                  rank_,
                  " cannot read the memory of rank ",
                  rank,
                  ", which is on another machine: use a collective");
    return const_cast<std::byte*>(buffer_.peer(rank - first_));
  }
  std::size_t size_bytes() const override { return buffer_.size_bytes(); }
  int rank() const override { return rank_; }
  const std::byte* read_only() override { return buffer_.whole_read_only(); }

 private:
  SharedBuffer buffer_;
  int first_;
  int count_;
  int rank_;
};

SharedBuffer HierarchicalCommunicator::allocate(std::size_t bytes) {
  // In its turn: the parts of earlier operations that go through `inside_` come before it there, on
  // every rank, and the machines agree about the size.
  Operation operation;
  operation.kind = OpKind::kAllocate;
  operation.total = static_cast<std::int64_t>(bytes);
  submit(std::move(operation)).wait();
  SharedBuffer buffer;
  std::string failure;
  try {
    buffer = inside_->allocate(bytes);
  } catch (const MemoryError& error) {
    failure = error.what();
  } catch (const CommError& error) {
    const int first = rank_ - self().local_rank;
    queue_->fail_with({error.reason(), error.peer() < 0 ? -1 : first + error.peer(), error.what()});
  }
  agree_on_memory(*this, failure);
  return SharedBuffer(std::make_shared<MachineBuffer>(
      std::move(buffer), rank_ - self().local_rank, self().local_size, rank_));
}

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(
    const std::shared_ptr<Transport>& transport,
    std::unique_ptr<Communicator> inside,
    std::unique_ptr<Communicator> machine,
    HierarchyOptions options) {
  return std::make_unique<HierarchicalCommunicator>(
      transport, std::move(inside), std::move(machine), std::move(options));
}

}  // namespace trireme::detail
