#include "comm/hierarchy/hierarchical_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include <unistd.h>

#include "comm/net/remote_window.h"
#include "comm/reduce_kernels.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

// Note [hierarchy]
// With M machines of L ranks each, rank m * L + j is number j of machine m. The numbers j of all
// machines are a column, with a communicator of their own (`between_`).
//
//   all_reduce      add up inside a machine, each rank a part; the columns add up their parts; put
//                   the parts together inside the machine
//   reduce_scatter  for each machine, add up inside what its ranks will own; the columns add those
//   all_gather      the columns exchange what they have; put it together inside the machine
//   broadcast       down the root's column, then inside each machine
//
// Sums made that way have the order of sum_group = L: machine by machine. With another group, sums
// of floats are made by all ranks directly (`flat_`), where every owner has every term. What is not
// worth a hierarchy (gather, scatter, all_to_all, messages) goes there as well.

namespace trireme::detail {
namespace {

constexpr Milliseconds kGrace{1500};
constexpr Milliseconds kForever = std::chrono::hours(24 * 365);

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

bool is_half(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
}

bool is_float(Dtype dtype) {
  return is_half(dtype) || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64;
}

// The ranges' parts inside `window`, counted from `origin` instead of window.begin.
std::vector<Range> clipped(std::span<const Range> ranges, Range window, std::int64_t origin) {
  std::vector<Range> result;
  for (const Range& range : ranges) {
    const Range inside = intersection(range, window);
    if (!inside.empty()) {
      result.push_back({inside.begin - window.begin + origin, inside.end - window.begin + origin});
    }
  }
  return result;
}

// An operation of a part has finished.
class Done final : public Condition {
 public:
  // `world_rank`: of a rank of the part. `name`: of a rank of the world, where the part's own words
  // for a lost one leave its machine out.
  Done(Work work, std::function<int(int)> world_rank, std::function<std::string(int)> name = {})
      : work_(std::move(work)), world_rank_(std::move(world_rank)), name_(std::move(name)) {}
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  ~Done() override { work_.forget(); }
  bool ready() override {
    try {
      return work_.done();
    } catch (const CommError& error) {
      throw of_the_world(error);
    }
  }
  std::vector<int> missing() override {
    std::vector<int> ranks = work_.missing();
    for (int& rank : ranks) {
      rank = world_rank_(rank);
    }
    return ranks;
  }

 private:
  CommError of_the_world(const CommError& error) const {
    using Reason = CommError::Reason;
    const int rank = error.peer() < 0 ? -1 : world_rank_(error.peer());
    const bool died = error.reason() == Reason::kPeerDied;
    if (!name_ || rank < 0 || !(died || error.reason() == Reason::kPeerLeft)) {
      return CommError(error.reason(), rank, error.what());
    }
    return CommError(error.reason(),
                     rank,
                     concat(name_(rank),
                            died ? " has ended without leaving the world: it crashed or was killed"
                                 : " has left the world while others still wait for it"));
  }

  Work work_;
  std::function<int(int)> world_rank_;
  std::function<std::string(int)> name_;
};

// A communicator's way in, for operations that are already checked.
class Door : public Communicator {
 public:
  static Work issue(Communicator& to, Operation operation) {
    return submit_to(to, std::move(operation));
  }
};

// What a rank of a machine tells the others of its call.
struct Facts {
  OpKind kind;
  ReduceOp reduce;
  Dtype dtype;
  std::uint8_t unused;
  std::int32_t root;
  std::int64_t total;
  std::int64_t absent;
};

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
        ranks_per_machine_(members_[index(rank_)].local_size),
        machines_(members_.back().node + 1),
        node_(members_[index(rank_)].node),
        local_(members_[index(rank_)].local_rank),
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
    even_ = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
      return member.local_size == ranks_per_machine_;
    });
    if (even_) {
      NetOptions column = flat;
      column.ranks.clear();
      for (int machine_number = 0; machine_number < machines_; ++machine_number) {
        column.ranks.push_back(machine_number * ranks_per_machine_ + local_);
      }
      column.channel = 1 + static_cast<std::uint32_t>(local_);
      column.sum_group = 1;
      between_ = std::make_unique<NetCommunicator>(transport, column);
    } else if (rank_ == 0) {
      log(LogLevel::kInfo,
          "the machines have different numbers of ranks: data goes between all ranks directly, "
          "without a hierarchy");
    }
    queue_ = std::make_shared<OperationQueue>(*this, options_.queue);
    queue_->start_helper();
  }
  HierarchicalCommunicator(const HierarchicalCommunicator&) = delete;
  HierarchicalCommunicator& operator=(const HierarchicalCommunicator&) = delete;
  ~HierarchicalCommunicator() override {
    if (getpid() != owner_ || !queue_->close()) {
      flat_->abandon();
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

  CommUse use() const override {
    CommUse use = queue_->use();
    use.network_bytes = flat_->use().network_bytes +
                        (between_ ? between_->use().network_bytes : 0) + *window_bytes_;
    return use;
  }

  SharedBuffer allocate(std::size_t bytes) override;
  std::unique_ptr<Window> expose(const std::byte* data, std::size_t bytes) override {
    return make_remote_window(
        *this, *transport_, members_, options_.queue.timeout, data, bytes, window_bytes_);
  }

  std::string name(int rank) const override { return flat_->name(rank); }

 protected:
  Work submit(Operation operation) override {
    return queue_->issue(std::move(operation), [&](const Operation& op, std::uint32_t sequence) {
      if (sequence != 0) {
        last_issued_ = {sequence, facts_of(op)};
      }
      return run(op, sequence);
    });
  }

 private:
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
      return members_[index(rank)].node == node_;
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
    inside_->abort(error.what());
  }

  // --- operations

  Steps run(const Operation& op, std::uint32_t sequence) {
    if (!even_ || options_.algorithm != Algorithm::kAutomatic) {
      return through_flat(op);
    }
    switch (op.kind) {
      case OpKind::kBarrier:
        return barrier(op, sequence);
      case OpKind::kAllReduce:
        return adds_up_by_machine(op) ? all_reduce(op, sequence) : through_flat(op);
      case OpKind::kReduceScatter:
        return adds_up_by_machine(op) ? reduce_scatter(op, sequence) : through_flat(op);
      case OpKind::kAllGather:
        return all_gather(op, sequence);
      case OpKind::kBroadcast:
        return broadcast(op, sequence);
      default:
        return through_flat(op);
    }
  }

  // Whether the order of its sum is the hierarchy's, or does not matter.
  bool adds_up_by_machine(const Operation& op) const {
    if (op.reduce == ReduceOp::kMin || op.reduce == ReduceOp::kMax) {
      return true;
    }
    if (!is_float(op.dtype)) {
      return op.reduce == ReduceOp::kSum;  // an average divides what has not wrapped around
    }
    return (op.terms.group > 0 ? op.terms.group : options_.sum_group) == ranks_per_machine_;
  }

  Done inside(Operation operation) {
    return Done(
        Door::issue(*inside_, std::move(operation)),
        [first = node_ * ranks_per_machine_](int rank) { return first + rank; },
        [this](int rank) { return name(rank); });
  }
  Done between(Operation operation, const Operation& outer) {
    return column_done(between_->submit_as(std::move(operation), facts_of(outer)));
  }
  Done column_done(Work work) {
    return Done(std::move(work), [per = ranks_per_machine_, local = local_](int machine_number) {
      return machine_number * per + local;
    });
  }

  Steps through_flat(const Operation& op) {
    Operation copy = op;
    co_await Done(flat_->submit(std::move(copy)), [](int rank) { return rank; });
  }

  // All ranks of this machine make the same call; and what each leaves out of a sum.
  Steps agree_inside(const Operation& op,
                     std::uint32_t sequence,
                     std::vector<std::vector<Range>>* absent) {
    const Facts mine{op.kind,
                     op.reduce,
                     op.dtype,
                     0,
                     op.root,
                     op.total,
                     static_cast<std::int64_t>(op.terms.absent.size())};
    std::vector<Facts> all(index(ranks_per_machine_));
    co_await inside(gather_of(&mine, sizeof(mine), all.data(), {}));
    const auto call_of = [](const Facts& facts) {
      CallFacts result;
      result.kind = facts.kind;
      result.reduce = facts.reduce;
      result.dtype = facts.dtype;
      result.root = facts.root;
      result.total = facts.total;
      return result;
    };
    Counts counts;
    std::int64_t ranges = 0;
    const int first = node_ * ranks_per_machine_;
    for (int peer = 0; peer < ranks_per_machine_; ++peer) {
      check_same_call(sequence,
                      0,
                      rank_,
                      call_of(mine),
                      first + peer,
                      call_of(all[index(peer)]),
                      [&](int rank) { return name(rank); });
      counts.push_back(all[index(peer)].absent * static_cast<std::int64_t>(sizeof(Range)));
      ranges += all[index(peer)].absent;
    }
    if (absent == nullptr || ranges == 0) {
      co_return;
    }
    std::vector<Range> lists(static_cast<std::size_t>(ranges));
    co_await inside(gather_of(
        op.terms.absent.data(), op.terms.absent.size() * sizeof(Range), lists.data(), counts));
    auto at = lists.begin();
    for (const Facts& facts : all) {
      absent->emplace_back(at, at + facts.absent);
      at += facts.absent;
    }
  }

  // An all_gather of bytes inside the machine; as many from each, or `counts`.
  Operation gather_of(const void* mine, std::size_t bytes, void* all, Counts counts) const {
    Operation op;
    op.kind = OpKind::kAllGather;
    op.dtype = Dtype::kUint8;
    if (counts.empty()) {
      counts.assign(index(ranks_per_machine_), static_cast<std::int64_t>(bytes));
    }
    op.total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    op.input = ConstSpan(mine, static_cast<std::int64_t>(bytes), Dtype::kUint8);
    op.output = Span(all, op.total, Dtype::kUint8);
    op.counts = std::move(counts);
    return op;
  }

  static Operation barrier_of() {
    Operation op;
    op.kind = OpKind::kBarrier;
    return op;
  }

  Steps barrier(const Operation& op, std::uint32_t sequence) {
    co_await Part(agree_inside(op, sequence, nullptr));
    co_await between(barrier_of(), op);
    if (ranks_per_machine_ > 1) {
      co_await inside(barrier_of());
    }
  }

  Steps broadcast(const Operation& op, std::uint32_t sequence) {
    co_await Part(agree_inside(op, sequence, nullptr));
    const int root_local = op.root % ranks_per_machine_;
    // The root's whole column has it first.
    const Span data = rank_ == op.root
                          ? Span(const_cast<std::byte*>(op.input.bytes()), op.total, op.dtype)
                          : op.output;
    Operation part;
    if (local_ == root_local) {
      part.kind = OpKind::kBroadcast;
      part.dtype = op.dtype;
      part.root = op.root / ranks_per_machine_;
      part.total = op.total;
      (node_ == part.root ? static_cast<ConstSpan&>(part.input) : part.output) = data;
      co_await between(std::move(part), op);
    } else {
      co_await between(barrier_of(), op);
    }
    if (ranks_per_machine_ == 1) {
      co_return;
    }
    Operation local;
    local.kind = OpKind::kBroadcast;
    local.dtype = op.dtype;
    local.root = root_local;
    local.total = op.total;
    if (local_ == root_local) {
      local.input = data;
    } else {
      local.output = data;
    }
    co_await inside(std::move(local));
  }

  std::int64_t begin(const Operation& op, int rank) const {
    return std::accumulate(op.counts.begin(), op.counts.begin() + rank, std::int64_t{0});
  }
  // What the ranks of a machine have of the whole.
  Counts counts_of(const Operation& op, int machine_number) const {
    const auto first =
        op.counts.begin() + static_cast<std::ptrdiff_t>(machine_number) * ranks_per_machine_;
    return {first, first + ranks_per_machine_};
  }

  Steps all_gather(const Operation& op, std::uint32_t sequence) {
    co_await Part(agree_inside(op, sequence, nullptr));
    const std::size_t element = dtype_bytes(op.dtype);
    const auto at = [&](int rank) {
      return op.output.bytes() + static_cast<std::size_t>(begin(op, rank)) * element;
    };
    // Checks that the machines make the same call; the data does not wait for it.
    Done same = between(barrier_of(), op);
    std::vector<std::unique_ptr<Done>> arriving(index(machines_));
    std::vector<std::unique_ptr<Done>> leaving;
    for (int step = 1; step < machines_; ++step) {
      const int other = (node_ + step) % machines_;
      const int from = other * ranks_per_machine_ + local_;
      Operation recv;
      recv.kind = OpKind::kRecv;
      recv.dtype = op.dtype;
      recv.peer = other;
      recv.output = Span(at(from), op.counts[index(from)], op.dtype);
      recv.total = recv.output.numel();
      arriving[index(other)] =
          std::make_unique<Done>(between_->submit(std::move(recv)), column_rank());
      Operation send;
      send.kind = OpKind::kSend;
      send.dtype = op.dtype;
      send.peer = other;
      send.input = op.input;
      send.total = op.input.numel();
      leaving.push_back(std::make_unique<Done>(between_->submit(std::move(send)), column_rank()));
    }
    for (int step = 0; step < machines_; ++step) {
      const int other = (node_ + step) % machines_;
      if (arriving[index(other)]) {
        co_await *arriving[index(other)];
      }
      Operation local;
      local.kind = OpKind::kAllGather;
      local.dtype = op.dtype;
      local.counts = counts_of(op, other);
      local.total = std::accumulate(local.counts.begin(), local.counts.end(), std::int64_t{0});
      const int mine = other * ranks_per_machine_ + local_;
      local.input =
          other == node_ ? op.input : ConstSpan(at(mine), op.counts[index(mine)], op.dtype);
      local.output = Span(at(other * ranks_per_machine_), local.total, op.dtype);
      co_await inside(std::move(local));
    }
    for (auto& work : leaving) {
      co_await *work;
    }
    co_await same;
  }

  std::function<int(int)> column_rank() const {
    return [per = ranks_per_machine_, local = local_](int machine_number) {
      return machine_number * per + local;
    };
  }

  // Sums of 16-bit floats travel in float32.
  static Dtype sum_dtype(const Operation& op) {
    const bool sums = op.reduce == ReduceOp::kSum || op.reduce == ReduceOp::kAverage;
    return sums && is_half(op.dtype) ? Dtype::kFloat32 : op.dtype;
  }
  static ReduceOp without_division(ReduceOp op) {
    return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
  }
  // The division of an average, and the rounding to the type of the result.
  void finish(const Operation& op, std::byte* sums, std::int64_t numel, std::byte* result) const {
    const Dtype wide = sum_dtype(op);
    if (op.reduce == ReduceOp::kAverage && numel > 0) {
      const std::byte* input = sums;
      detail::reduce({.dtype = wide,
                      .op = ReduceOp::kAverage,
                      .divisor = size(),
                      .inputs = std::span(&input, 1),
                      .outputs = std::span(&sums, 1),
                      .numel = static_cast<std::size_t>(numel)});
    }
    if (result == sums || numel == 0) {
      return;
    }
    if (wide != op.dtype) {
      round_floats(
          op.dtype, reinterpret_cast<const float*>(sums), result, static_cast<std::size_t>(numel));
    } else {
      std::memcpy(result, sums, static_cast<std::size_t>(numel) * dtype_bytes(wide));
    }
  }

  static std::vector<std::span<const Range>> views(const std::vector<std::vector<Range>>& lists) {
    return {lists.begin(), lists.end()};
  }

  Steps all_reduce(const Operation& op, std::uint32_t sequence) {
    std::vector<std::vector<Range>> absent;
    co_await Part(agree_inside(op, sequence, &absent));
    const Counts parts = even_counts(op.total, ranks_per_machine_);
    const Range mine = even_range(op.total, ranks_per_machine_, local_);
    const Dtype wide = sum_dtype(op);
    std::byte* own =
        op.output.bytes() + static_cast<std::size_t>(mine.begin) * dtype_bytes(op.dtype);
    std::vector<std::byte> scratch;
    std::byte* sums = own;
    if (wide != op.dtype) {
      scratch.resize(static_cast<std::size_t>(mine.size()) * dtype_bytes(wide));
      sums = scratch.data();
    }
    Operation local;
    local.kind = OpKind::kReduceScatter;
    local.reduce = without_division(op.reduce);
    local.dtype = op.dtype;
    local.total = op.total;
    local.counts = parts;
    local.terms.absent = op.terms.absent;
    local.input = op.input;
    local.output = Span(sums, mine.size(), wide);
    co_await inside(std::move(local));
    Operation column;
    column.kind = OpKind::kAllReduce;
    column.reduce = without_division(op.reduce);
    column.dtype = wide;
    column.total = mine.size();
    column.counts = even_counts(mine.size(), machines_);
    column.terms.absent = clipped(common_ranges(views(absent)), mine, 0);
    column.output = Span(sums, mine.size(), wide);
    column.input = column.output;
    co_await between(std::move(column), op);
    finish(op, sums, mine.size(), own);
    if (ranks_per_machine_ == 1) {
      co_return;
    }
    Operation gather;
    gather.kind = OpKind::kAllGather;
    gather.dtype = op.dtype;
    gather.total = op.total;
    gather.counts = parts;
    gather.input = ConstSpan(own, mine.size(), op.dtype);
    gather.output = op.output;
    co_await inside(std::move(gather));
  }

  Steps reduce_scatter(const Operation& op, std::uint32_t sequence) {
    std::vector<std::vector<Range>> absent;
    co_await Part(agree_inside(op, sequence, &absent));
    const std::vector<Range> nobodys = common_ranges(views(absent));
    const std::size_t element = dtype_bytes(op.dtype);
    const Dtype wide = sum_dtype(op);
    // This column's sums of this machine, machine after machine, as the column will add them up.
    Counts column_counts;
    column_counts.reserve(index(machines_));
    for (int other = 0; other < machines_; ++other) {
      column_counts.push_back(op.counts[index(other * ranks_per_machine_ + local_)]);
    }
    const std::int64_t column_total =
        std::accumulate(column_counts.begin(), column_counts.end(), std::int64_t{0});
    const auto sums = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<std::size_t>(column_total) * dtype_bytes(wide));
    SumTerms terms;
    std::int64_t at = 0;
    for (int other = 0; other < machines_; ++other) {
      const int first = other * ranks_per_machine_;
      Operation local;
      local.kind = OpKind::kReduceScatter;
      local.reduce = without_division(op.reduce);
      local.dtype = op.dtype;
      local.counts = counts_of(op, other);
      local.total = std::accumulate(local.counts.begin(), local.counts.end(), std::int64_t{0});
      const Range region{begin(op, first), begin(op, first) + local.total};
      local.terms.absent = clipped(op.terms.absent, region, 0);
      local.input = ConstSpan(op.input.bytes() + static_cast<std::size_t>(region.begin) * element,
                              local.total,
                              op.dtype);
      const std::int64_t count = column_counts[index(other)];
      local.output =
          Span(sums.get() + static_cast<std::size_t>(at) * dtype_bytes(wide), count, wide);
      const std::int64_t mine = begin(op, first + local_);
      const auto without = clipped(nobodys, {mine, mine + count}, at);
      terms.absent.insert(terms.absent.end(), without.begin(), without.end());
      if (other == node_) {
        terms.fresh = clipped(op.terms.fresh, {mine, mine + count}, at);
      }
      co_await inside(std::move(local));
      at += count;
    }
    terms.accumulate = op.terms.accumulate;
    const bool straight = op.output.dtype() == wide;
    std::vector<std::byte> scratch;
    if (!straight) {
      // A sum that nobody contributes to keeps what the output had, also through the wider type.
      scratch.resize(static_cast<std::size_t>(op.output.numel()) * dtype_bytes(wide));
      std::byte* to = scratch.data();
      const std::byte* from = op.output.bytes();
      if (op.output.numel() > 0) {
        detail::reduce({.dtype = op.dtype,
                        .op = ReduceOp::kSum,
                        .divisor = 1,
                        .inputs = std::span(&from, 1),
                        .outputs = std::span(&to, 1),
                        .numel = static_cast<std::size_t>(op.output.numel()),
                        .widen = true});
      }
    }
    Operation column;
    column.kind = OpKind::kReduceScatter;
    column.reduce = without_division(op.reduce);
    column.dtype = wide;
    column.total = column_total;
    column.counts = column_counts;
    column.terms = std::move(terms);
    column.input = ConstSpan(sums.get(), column_total, wide);
    column.output = Span(straight ? op.output.bytes() : scratch.data(), op.output.numel(), wide);
    const Span result = column.output;
    co_await between(std::move(column), op);
    finish(op, result.bytes(), op.output.numel(), op.output.bytes());
  }

  HierarchyOptions options_;
  std::unique_ptr<Communicator> inside_;
  std::unique_ptr<Communicator> machine_;
  int rank_;
  std::vector<Member> members_;
  int ranks_per_machine_;
  int machines_;
  int node_;
  int local_;
  const pid_t owner_ = getpid();
  bool even_ = true;  // every machine has as many ranks
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<NetCommunicator> flat_;
  std::unique_ptr<NetCommunicator> between_;
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
  SharedBuffer buffer;
  std::string failure;
  try {
    buffer = inside_->allocate(bytes);
  } catch (const MemoryError& error) {
    failure = error.what();
  }
  agree_on_memory(*this, failure);
  return SharedBuffer(std::make_shared<MachineBuffer>(
      std::move(buffer), rank_ - local_, ranks_per_machine_, rank_));
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
