#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/bucket_ring.h"
#include "parallel/gradient_sums.h"
#include "parallel/parameter_table.h"
#include "parallel/round_records.h"
#include "parallel/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/shard/bucket_plan.h"

namespace trireme::detail {

// Sums the gradients of a step's micro-batches over the ranks, in one order whatever the stage, the
// world and the buckets (docs/parity.md): round k adds micro-batches k*N to k*N+N-1, in rank order,
// to sums that live with the owner of each range.
//
// Gradients are written once, straight into a bucket in memory that the ranks share. (A process
// alone copies them too: keeping the tensors that autograd made was a third slower, because their
// memory then comes from the kernel, page by page, in every step.) A bucket that
// is full is reduced as soon as those before it are, while backward goes on. Bucket memory is one
// of:
//   in place  whole gradients of the unit, in which each rank's range becomes sums (DDP and stage 1
//             with one round)
//   ring      a few buckets that are used over and over (stages 2 and 3, and everything with
//             several rounds)
//   local     whole gradients of this rank, for SumOrder::kLocalFirst at stages 2 and 3
class GradientReducer {
 public:
  GradientReducer(const std::vector<Parameter>& parameters,
                  const std::vector<Unit>& units,
                  const std::vector<Place>& places,
                  const EngineOptions& options,
                  std::int64_t rounds,
                  Communicator& ranks,
                  Communicator& owners,
                  MemoryLedger& ledger);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  ~GradientReducer();

  // --- a backward pass, or its place where this rank has none

  // `expected` says, by parameter, whether a gradient can come at all.
  void begin_round(bool last_of_this_rank, const std::vector<bool>& expected);
  // A parameter's gradient of this micro-batch; called once for each that has one.
  void add(std::size_t parameter, const at::Tensor& gradient);
  // Backward is over; what has not come will not come. The others are told the rest.
  struct RoundEnd {
    bool took_part = false;  // there was a micro-batch
    bool joined = false;     // there is no more data
    bool given_up = false;
    Rate rate{};
  };
  void end_round(const RoundEnd& end);

  // Between steps: how many rounds the next ones have. Collective; may need memory for buckets.
  void set_rounds(std::int64_t rounds);

  // --- the end of a step

  // Waits for all rounds. The sums are then with their owners. Collective.
  Agreement finish();
  const GradientSums& sums() const { return sums_; }
  // DDP: makes the sums whole in this rank's memory. Collective.
  void gather_whole() { sums_.gather_whole(); }
  // Forgets the step. Collective.
  void reset();

 private:
  struct State {  // of one bucket in one round
    std::byte* memory = nullptr;
    int slot = -1;             // of the ring
    std::int64_t missing = 0;  // elements that have not come yet
    bool launched = false;
  };
  struct Flight {
    std::size_t bucket;
    int slot;
    Work work;
    const std::byte* memory = nullptr;  // where every machine has all sums: of this bucket's
  };
  enum class Space { kInPlace, kRing, kLocal };

  Space space_of(const Unit& unit) const;
  // Micro-batches of this rank are added up before anything is sent.
  bool adds_locally() const;
  Dtype bucket_dtype(const Unit& unit) const;
  std::byte* acquire(std::size_t bucket);
  int acquire_slot();
  // What keeps the memory of a bucket alive.
  std::shared_ptr<const void> owner_of(std::size_t bucket, int slot) const;
  void launch_ready();
  void wait_until_released();
  void launch(std::size_t bucket);
  void launch_hooked(std::size_t bucket, const std::vector<Range>& absent);
  void poll();
  void wait_for_oldest();
  void retire(Flight& flight);
  void reduce_sparse();
  void make_ring();
  // Rounds of one group of micro-batches, see Note [groups of micro-batches]; 0 where a round has
  // whole groups.
  std::int64_t rounds_per_group() const;
  void close_group();
  std::vector<Range> absent_ranges(const Bucket& bucket) const;
  std::vector<Range> fresh_ranges(const Bucket& bucket) const;

  const std::vector<Parameter>& parameters_;
  const std::vector<Unit>& units_;
  const std::vector<Place>& places_;
  const EngineOptions& options_;
  std::int64_t rounds_;
  Communicator& ranks_;
  MemoryLedger& ledger_;
  const bool replicated_;  // every machine has all sums, divided among its ranks

  GradientSums sums_;
  RoundRecords records_;

  std::vector<Bucket> buckets_;                       // by index
  std::vector<std::vector<std::size_t>> buckets_of_;  // by parameter: those it reaches into
  std::vector<std::size_t> order_;  // in which they are launched, the same everywhere
  std::vector<State> states_;
  std::size_t next_ = 0;  // in order_: the next to be launched

  BucketRing ring_;
  std::deque<Flight> in_flight_;

  // This step.
  std::vector<GradientState> present_;  // by parameter, in this round
  std::vector<char> accumulated_;       // by parameter: the sums hold something
  std::vector<char> local_;             // by parameter: the local gradients hold something
  std::vector<bool> expected_;          // by parameter, in this round: a gradient can come
  bool last_round_of_this_rank_ = false;
  Work released_;  // DDP: everyone has read the last step's sums
  bool release_pending_ = false;
  std::int64_t rounds_done_ = 0;
  std::vector<std::size_t> filled_;  // buckets in the order in which they were filled
  bool learned_ = false;
  bool told_of_growth_ = false;
  std::vector<std::pair<std::size_t, at::Tensor>> sparse_;  // gradients of this round
};

}  // namespace trireme::detail
