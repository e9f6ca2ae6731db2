#pragma once

#include <deque>
#include <vector>

#include "parallel/gradient/bucket_order.h"
#include "parallel/gradient/gradient_path.h"
#include "parallel/memory/bucket_memory.h"

namespace trireme::detail {

// The gradient's elements in the order of the parameter's memory and in its dtype.
at::Tensor in_order_of(const Parameter& parameter, Dtype dtype, const at::Tensor& gradient);

// Dense gradients, written once, straight into buckets, which are launched in one order as soon as
// they are full. What launching means is the subclass's: a sum, a user's function, later a codec.
//
// Gradients are written into memory that the ranks share. (A process alone copies them too: keeping
// the tensors that autograd made was a third slower, because their memory then comes from the
// kernel, page by page, in every step.)
class BucketPath : public GradientPath {
 public:
  // `launches`: also in a process alone, for which what was written is the sum.
  BucketPath(const PartContext& context, GradientSums& sums, bool launches);
  ~BucketPath() override;

  void set_rounds(std::int64_t rounds) override { memory_.set_rounds(rounds, buckets_); }
  void begin_round(const Round& round) override;
  bool add(std::size_t parameter, const at::Tensor& gradient) override;
  std::vector<std::size_t> found_not_finite() override;
  void end_round(bool given_up) override;
  void finish() override;
  void end_step(StepOutcome outcome) override;

 protected:
  // What is launched, with everything of this rank in it that has come.
  struct Ready {
    std::size_t bucket = 0;
    Span memory{};  // nothing of it came: no elements
    int slot = -1;  // of the ring
    // Parts that this rank has nothing for, counted from the bucket's beginning: whole parameters,
    // with the gaps between them.
    std::vector<Range> absent{};
  };
  virtual void launch(const Ready& ready) = 0;
  // An operation on this bucket's memory has begun; the memory is given back when it is done,
  void begun(const Ready& ready, Work work);
  // which a subclass may hear of first.
  virtual void finished(std::size_t /*bucket*/, const Span& /*memory*/) {}
  // Memory for a bucket that nothing came for.
  Ready with_memory(Ready ready);
  // Nothing is on its way in this memory.
  void give_back(const Ready& ready);
  // The local gradients hold nothing any more.
  void forget_local();

  std::size_t bucket_count() const { return buckets_.size(); }
  const Bucket& bucket(std::size_t index) const { return buckets_[index]; }
  const Unit& unit_of(std::size_t index) const { return context_.plan.units[buckets_[index].unit]; }
  // The part of a bucket that this rank owns, in the unit.
  Range own_part(std::size_t index) const {
    return intersection(context_.plan.ownership.mine(buckets_[index].unit), buckets_[index].range);
  }

  PartContext context_;
  GradientSums& sums_;
  BucketMemory memory_;
  Round round_;

 private:
  struct Filling {  // of one bucket in one round
    Span memory{};
    int slot = -1;
    std::int64_t missing = 0;  // elements that have not come yet
    bool open = false;         // it has memory
    bool launched = false;
  };
  struct Pending {
    std::size_t bucket = 0;
    Span memory{};
    int slot = -1;
    Work work{};
  };

  bool may_launch() const;
  bool launch_next(bool may_wait);
  bool show(std::size_t bucket, bool may_wait);
  Filling& open(std::size_t bucket);
  int acquire_slot();
  bool write(std::size_t parameter, std::size_t bucket, const ConstSpan& gradient);
  std::vector<Range> absent_ranges(const Bucket& bucket) const;
  void poll();
  void finish_oldest();

  const bool launches_;
  std::vector<Bucket> buckets_;                       // by index
  std::vector<std::vector<std::size_t>> buckets_of_;  // by parameter: those it reaches into
  BucketOrder order_;
  std::vector<Filling> filling_;
  std::size_t next_ = 0;       // in order_: the next to be launched
  std::vector<char> present_;  // by parameter, in this round
  std::vector<char> local_;    // by parameter: the local gradients hold something
  std::deque<Pending> pending_;
  bool told_of_growth_ = false;
  device::Buffer flags_;  // by parameter, where a GPU says that a gradient is not finite
};

}  // namespace trireme::detail
