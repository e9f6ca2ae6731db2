// How the steps of a run get along with the memory that there is.

#include <algorithm>
#include <numeric>

#include <c10/core/CachingDeviceAllocator.h>

#include "train/building.h"
#include "train/micro_batch_search.h"
#include "train/out_of_memory.h"
#include "train/step_runner.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/settings/unused.h"

namespace trireme::detail {
namespace {

// Of the memory that is free, what the tensors of a rank may take: the rest of the system, and
// allocations that are not tensors, need some, too.
constexpr double kShareOfFreeMemory = 0.9;

}  // namespace

// On this machine: of the state of its ranks, and, where there are others, of that of one of these,
// which may be the one with most ranks (docs/elastic.md, redundancy).
double StepRunner::bytes_of_copies() const {
  if (copies_ == 0) {
    return 0;
  }
  std::vector<double> bytes = {static_cast<double>(resumable().state().view.size_bytes())};
  world_->all_reduce(bytes).wait();
  std::vector<std::int64_t> most = {world_->local_size()};
  world_->all_reduce(most, ReduceOp::kMax).wait();
  const auto ranks = std::min<std::int64_t>(world_->size(), world_->local_size() + most[0]);
  return copies_ * bytes[0] * static_cast<double>(ranks) / world_->size();
}

void StepRunner::limit_memory() const {
  const auto wanted = memory_limit_bytes(settings_.memory_limit);
  const double free =
      std::max(0.0, static_cast<double>(available_memory_bytes()) - bytes_of_copies()) /
      world_->local_size();
  const auto limit =
      wanted ? *wanted : static_cast<std::uint64_t>(std::max(1.0, kShareOfFreeMemory * free));
  const auto most = static_cast<std::uint64_t>(kMostOfFreeMemory * free);
  MemoryLimit::set(limit, limit == 0 ? 0 : std::max(limit, most));
  forget_peak();
}

std::int64_t StepRunner::peak_tensor_bytes() const {
  if (device_.is_cpu()) {
    return static_cast<std::int64_t>(MemoryLimit::peak_bytes());
  }
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device_.type())
      ->getDeviceStats(device_.index())
      .allocated_bytes[kAll]
      .peak;
}

void StepRunner::forget_peak() const {
  MemoryLimit::reset_peak();
  if (!device_.is_cpu()) {
    // What LibTorch keeps for tensors to come is for the engine, and for the other ranks, too.
    c10::getDeviceAllocator(device_.type())->emptyCache();
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }
}

bool StepRunner::fits(std::int64_t micro_batch) {
  // Two for every rank, of which one is computed: the step can then be given up.
  engine_->deal(std::vector<std::int64_t>(static_cast<std::size_t>(world_->size()), 2));
  bool good = true;
  std::string reason = "a trial";
  try {
    std::vector<std::int64_t> samples;
    Batch batch;
    sampler_.fill(position_, 0, micro_batch, samples);
    data_->read(samples, batch);
    compute_one(engine_->micro_batch(0), batch);
  } catch (const std::exception& error) {
    if (!ran_out_of_memory(error)) {
      throw;
    }
    good = false;
  }
  try {
    engine_->give_up(reason);
  } catch (const StepGivenUp&) {
    statistics_.forget_step();
  }
  losses_.clear();
  if (!good) {
    forget_peak();
  }
  return good;
}

// What micro-batches have to divide from here on: this batch and all that are to come.
std::int64_t StepRunner::common_batch() const {
  std::int64_t common = batch_at(next_step_);
  for (const BatchChange& change : batch_changes_) {
    common = change.step > next_step_ ? std::gcd(common, change.batch) : common;
  }
  return common;
}

// Nothing that is so already. A limit that was given is of activations: what ranks and stages
// divide is not among them.
std::string StepRunner::how_to_fit() const {
  std::vector<std::string> ways;
  if (memory_limit_bytes(settings_.memory_limit).value_or(0) > 0) {
    ways.emplace_back("a higher --memory-limit");
  } else if (world_->size() > 1) {
    ways.emplace_back("fewer ranks (-n)");
    if (settings_.zero < 3) {
      ways.emplace_back("a higher stage (--zero 3)");
    }
  }
  if (!settings_.recompute && why_unused("recompute", settings_).empty()) {
    ways.emplace_back("--recompute");
  }
  ways.emplace_back("a smaller model");
  return enumerated(ways, " or ");
}

void StepRunner::find_micro_batch() {
  const std::int64_t share = (settings_.batch + world_->size() - 1) / world_->size();
  micro_batch_ = largest_micro_batch(
      common_batch(), share, [this](std::int64_t size) { return fits(size); }, *world_);
  if (micro_batch_ == 0) {
    throw MemoryError(concat(
        "micro_batch: not even one sample fits into the memory of a rank (memory_limit): use ",
        how_to_fit()));
  }
  say_(concat("micro-batches of {} fit; a batch of {} is {} of them",
              {micro_batch_, settings_.batch, settings_.batch / micro_batch_}));
}

void StepRunner::make_smaller(const StepGivenUp& reason) {
  const std::int64_t before = micro_batch_;
  micro_batch_ = smaller_micro_batch(common_batch(), before);
  if (micro_batch_ == 0) {
    throw MemoryError(concat(reason.what(), "; not even one sample fits: use ", how_to_fit()));
  }
  const auto& compress = engine_->options().compress;
  TRIREME_CHECK(!compress || !compress->format().feedback,
                "{}; {} keeps what it leaves out of each micro-batch, so that they cannot be made "
                "smaller in a run: start it with a smaller --micro-batch, or use {}",
                {reason.what(), compress ? compress->format().name : "", how_to_fit()});
  TRIREME_CHECK(settings_.partition != Partition::kHash,
                reason.what(),
                "; smaller micro-batches would change the shares of the data: set micro_batch");
  say_(concat(
      reason.what(), "; continuing with micro-batches of ", micro_batch_, " instead of ", before));
  dealt_.clear();
}

}  // namespace trireme::detail
