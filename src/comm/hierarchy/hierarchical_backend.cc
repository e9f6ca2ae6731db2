#include "comm/hierarchy/hierarchical_backend.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "comm/hierarchy/hierarchical_collectives.h"
#include "comm/net/net_backend.h"
#include "comm/net/remote_window.h"
#include "comm/net/staging.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kGrace{1500};
constexpr auto kRestOfBoth = std::chrono::microseconds(50);

// The machine's shared memory, with the numbers of all ranks.
class MachineBuffer final : public SharedBuffer::Impl {
 public:
  // `local`: by rank, its number on this machine; -1 for those elsewhere.
  MachineBuffer(SharedBuffer buffer, std::vector<int> local, int rank)
      : buffer_(std::move(buffer)), local_(std::move(local)), rank_(rank) {}
  std::byte* data(int rank) const override {
    const int number = local_[index(rank)];
    TRIREME_CHECK(
        number >= 0,
        "rank {} cannot read the memory of rank {}, which is on another machine: use a collective",
        {rank_, rank});
    return const_cast<std::byte*>(buffer_.peer(number));
  }
  std::size_t size_bytes() const override { return buffer_.size_bytes(); }
  int rank() const override { return rank_; }
  const std::byte* read_only() override { return buffer_.whole_read_only(); }
  Device device() const override { return buffer_.device(); }

 private:
  SharedBuffer buffer_;
  std::vector<int> local_;
  int rank_;
};

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(HierarchyOptions hierarchy, const QueueOptions& options)
      : hierarchy_(std::move(hierarchy)),
        timeout_(options.timeout),
        network_(*hierarchy_.network),
        watch_(hierarchy_.network, hierarchy_.ranks, options.flight_folder, options.group),
        inside_(std::make_unique<Communicator>(
            Communicator::Parts{hierarchy_.inside, nullptr, nullptr})) {
    QueueOptions part;
    part.timeout = timeout_;
    part.part = true;
    NetOptions flat;
    flat.network = hierarchy_.network;
    flat.ranks = hierarchy_.ranks;
    flat.channel = hierarchy_.flat_channel;
    flat.algorithm = hierarchy_.algorithm;
    flat.sum_group = hierarchy_.sum_group;
    flat_ = make_net_queue(flat, part);
    const auto grid = grid_of_machines();
    if (grid && hierarchy_.algorithm == Algorithm::kAutomatic) {
      NetOptions column = flat;
      column.ranks.clear();
      for (int machine = 0; machine < grid->machines; ++machine) {
        column.ranks.push_back(world_rank(grid->counterpart(machine)));
      }
      column.channel = hierarchy_.column_channel;
      column.sum_group = 1;
      between_ = make_net_queue(column, part);
      collectives_.emplace(*grid, hierarchy_.sum_group, *hierarchy_.inside, *between_, *flat_);
    } else if (!grid && rank() == 0) {
      log(LogLevel::kInfo,
          "the machines have different numbers of ranks: all ranks communicate directly, without a "
          "hierarchy");
    }
  }

  int rank() const override { return flat_->backend().rank(); }
  int size() const override { return static_cast<int>(hierarchy_.ranks.size()); }
  int world_rank(int rank) const override { return watch_.world_rank(rank); }
  std::string name(int rank) const override { return watch_.name(rank); }
  int sum_group() const override { return hierarchy_.sum_group; }
  bool one_machine() const override { return false; }
  std::int64_t network_bytes() const override {
    return flat_->backend().network_bytes() + (between_ ? between_->backend().network_bytes() : 0) +
           *window_bytes_;
  }

  Steps start(const Call& call) override {
    if (call.is_collective()) {
      watch_.issued(call);
    }
    return Staging::is_for(call.operation)
               ? staging_.run(
                     rank(), call, [this](const Call& staged) { return start_on_host(staged); })
               : start_on_host(call);
  }
  void check_memory(const Operation& op) const override { check_works_on_devices(op); }
  void completed(const Call& call) override { watch_.completed(call); }
  bool pump() override { return watch_.pump(); }

  // In its turn: the parts of earlier operations that go through `inside_` come before it there, on
  // every rank.
  std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest& request) override {
    std::vector<int> local(hierarchy_.ranks.size(), -1);
    std::vector<int> here;
    for (int rank = 0; rank < size(); ++rank) {
      if (is_here(rank)) {
        local[index(rank)] = static_cast<int>(here.size());
        here.push_back(rank);
      }
    }
    try {
      return std::make_shared<MachineBuffer>(
          inside_->allocate(request.bytes, request.device), local, rank());
    } catch (const CommError& error) {
      throw CommError(
          error.reason(), error.peer() < 0 ? -1 : here[index(error.peer())], error.what());
    }
  }
  std::unique_ptr<Window> expose(Communicator& ranks,
                                 std::span<const std::byte> memory,
                                 const FindFailure& find_failure) override {
    return make_remote_window(ranks, network_, {timeout_, memory, window_bytes_, find_failure});
  }

  // Shared memory and network cannot be waited for at once: look often, but not all the time.
  void rest(std::uint32_t /*announced*/, Milliseconds /*most*/) override {
    std::this_thread::sleep_for(kRestOfBoth);
  }
  bool rests_unlocked() const override { return true; }
  // Another communicator over the same transport may rest there, with the lock.
  void wake() override { network_.transport()->wake(); }

  bool was_told() const override { return watch_.was_told(); }
  CommError told() const override { return watch_.told(); }
  std::optional<CommError> loss(const std::vector<int>& missing) override {
    return watch_.loss(missing);
  }
  Milliseconds grace(const std::vector<int>& missing) override {
    const bool all_here = std::ranges::all_of(missing, [&](int rank) { return is_here(rank); });
    return all_here ? kGrace : Milliseconds(0);
  }
  void say_waits_for(int rank) override { watch_.say_waits_for(rank); }
  std::vector<int> behind(const std::vector<int>& late) override { return watch_.behind(late); }
  std::string last_operations() const override { return watch_.last_operations(); }
  void spread(const CommError& failure) override { watch_.spread(failure); }

  void open() override { watch_.open(); }
  void close(bool clean) override {
    for (const auto& part : {between_, flat_}) {
      if (part) {
        part->close();
      }
    }
    inside_.reset();
    watch_.close(clean);
  }
  void close_in_child() override { network_.transport()->abandon(); }
  bool closes_at_exit() const override { return true; }

 private:
  Steps start_on_host(const Call& call) {
    return collectives_ ? collectives_->run(call.operation, static_cast<std::uint32_t>(call.number))
                        : run_flat(*flat_, call.operation);
  }
  int machine_of(int rank) const { return network_.machines()[index(world_rank(rank))]; }
  bool is_here(int rank) const { return machine_of(rank) == network_.self().node; }

  // Where the ranks of each machine follow each other, as many on each.
  std::optional<MachineGrid> grid_of_machines() const {
    const int per_machine = static_cast<int>(std::ranges::count_if(hierarchy_.ranks, [&](int rank) {
      return network_.machines()[index(rank)] == network_.self().node;
    }));
    if (size() % per_machine != 0) {
      return std::nullopt;
    }
    std::vector<int> machines;  // of the blocks of `per_machine` ranks
    for (int rank = 0; rank < size(); ++rank) {
      if (rank % per_machine == 0) {
        machines.push_back(machine_of(rank));
      } else if (machine_of(rank) != machines.back()) {
        return std::nullopt;
      }
    }
    const int blocks = static_cast<int>(machines.size());
    std::ranges::sort(machines);
    if (std::adjacent_find(machines.begin(), machines.end()) != machines.end()) {
      return std::nullopt;
    }
    return MachineGrid{.machines = blocks,
                       .ranks_per_machine = per_machine,
                       .node = rank() / per_machine,
                       .local = rank() % per_machine};
  }

  const HierarchyOptions hierarchy_;
  const Milliseconds timeout_;
  Network& network_;
  NetWatch watch_;
  std::unique_ptr<Communicator> inside_;
  std::shared_ptr<OperationQueue> flat_;
  std::shared_ptr<OperationQueue> between_;             // where there are collectives_
  std::optional<HierarchicalCollectives> collectives_;  // none: all goes through flat_
  Staging staging_;
  const std::shared_ptr<std::atomic<std::int64_t>> window_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace

std::shared_ptr<OperationQueue> make_hierarchical_queue(HierarchyOptions hierarchy,
                                                        QueueOptions options) {
  options.turns = hierarchy.network->turns();
  const auto inside = hierarchy.inside;
  std::vector<int> here;
  const std::vector<int>& machines = hierarchy.network->machines();
  for (std::size_t rank = 0; rank < hierarchy.ranks.size(); ++rank) {
    if (machines[index(hierarchy.ranks[rank])] == hierarchy.network->self().node) {
      here.push_back(static_cast<int>(rank));
    }
  }
  auto backend = std::make_unique<HierarchicalBackend>(std::move(hierarchy), options);
  auto queue = std::make_shared<OperationQueue>(std::move(backend), std::move(options));
  // Whoever waits inside for the memory of the machine hears what ends the whole.
  inside->end_with(queue, here);
  return queue;
}

}  // namespace trireme::detail
