// Which samples a step has, how many steps there are of them, and which rank computes which.

#include <algorithm>
#include <cmath>

#include "train/step_runner.h"
#include "trireme/core/error.h"

namespace trireme::detail {

double StepRunner::epoch_before() const {
  return next_step_ == 0 ? 0 : sampler_.epoch_at(position_ - batch_at(next_step_ - 1));
}

std::int64_t StepRunner::batch_at(std::int64_t step) const {
  std::int64_t batch = settings_.batch;
  for (const BatchChange& change : batch_changes_) {
    batch = step >= change.step ? change.batch : batch;
  }
  return batch;
}

std::int64_t StepRunner::count_steps() const {
  if (settings_.steps > 0) {
    return settings_.steps;
  }
  TRIREME_CHECK(settings_.epochs > 0, "steps: expected a number of steps or epochs, found none");
  const double samples = settings_.epochs * static_cast<double>(sampler_.epoch_samples());
  constexpr double kMostSamples = 9e15;  // whole numbers of samples are exact up to here
  TRIREME_CHECK(samples <= kMostSamples,
                "epochs: expected at most {} of this data, found {}",
                {kMostSamples / static_cast<double>(sampler_.epoch_samples()), settings_.epochs});
  std::vector<std::int64_t> changes;
  for (const BatchChange& change : batch_changes_) {
    changes.push_back(change.step);
  }
  std::sort(changes.begin(), changes.end());
  double left = samples;
  std::int64_t step = 0;
  for (std::size_t next = 0;; ++next) {
    // Up to the next change all batches are alike.
    while (next < changes.size() && changes[next] <= step) {
      ++next;
    }
    const auto batch = static_cast<double>(batch_at(step));
    double steps = std::ceil(left / batch);
    steps -= steps > 0 && (steps - 1) * batch >= left ? 1 : 0;  // where the division was rounded
    if (next >= changes.size() || static_cast<double>(changes[next] - step) >= steps) {
      return step + static_cast<std::int64_t>(steps);
    }
    left -= static_cast<double>(changes[next] - step) * batch;
    step = changes[next];
  }
}

void StepRunner::deal(std::int64_t batch) {
  const std::int64_t micro_batches = batch / micro_batch_;
  std::vector<std::int64_t> wanted = balance_.deal(micro_batches);
  if (are_apart()) {  // each its part of them, which its ranks share
    const std::vector<std::int64_t> part =
        even_counts(micro_batches / replicas(), replicas_->mine()->size());
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      wanted[rank] = part[rank % part.size()];
    }
  }
  for (std::size_t rank = 0; rank < wanted.size() && stale_; ++rank) {
    wanted[rank] = rank < static_cast<std::size_t>(workers_) ? micro_batches / workers_ : 0;
  }
  if (wanted == dealt_) {
    return;
  }
  if (!dealt_.empty() && balance_.wants_new_deal()) {
    std::string counts;
    for (const std::int64_t count : wanted) {
      counts += concat(counts.empty() ? "" : ", ", count);
    }
    say_(concat("micro-batches are dealt differently now: ", counts));
  }
  dealt_ = std::move(wanted);
  // Engines of replicas, and of ranks alone, are alike.
  engine_->deal({dealt_.begin(), dealt_.begin() + engine_->ranks().size()});
  loader_.clear();
  requested_until_.reset();
}

void StepRunner::request_step(DataPosition position) {
  for (std::int64_t k = 0; k < local_micro_batches(); ++k) {
    loader_.request(position, first_micro_batch_here() + engine_->micro_batch(k), micro_batch_);
  }
}

// Of a step's micro-batches, each replica, or rank, computes a part of consecutive ones.
std::int64_t StepRunner::first_micro_batch_here() const {
  const int part = are_apart() ? replicas_->number() : workers_ > 0 ? world_->rank() : 0;
  return part * engine_->micro_batches();
}

// Note [weighted losses]
// A weighted mean is divided by the weights of its samples. Of a step that is those of all its
// micro-batches, wherever they are computed: divided by its own, each micro-batch would count the
// same, whatever is in it, and the result would depend on their size. The engine divides by their
// number, so each is divided by the mean of their weights.
double StepRunner::mean_weight() const {
  double sum = 0;
  if (model_.task->predicts_tokens()) {
    Batch batch;
    data_->read(samples_of_next_step(), batch);
    sum = model_.task->weight_of(batch);
  } else {
    for (const std::int64_t sample : samples_of_next_step()) {
      sum += model_.task->weight_of(data_->label(sample));
    }
  }
  const std::int64_t micro_batches = batch_at(next_step_) / micro_batch_;
  return sum > 0 ? sum / static_cast<double>(micro_batches) : 1;
}

std::vector<std::int64_t> StepRunner::samples_of_next_step() const {
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> some;
  for (std::int64_t m = 0; m < batch_at(next_step_) / micro_batch_; ++m) {
    sampler_.fill(position_, m, micro_batch_, some);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace trireme::detail
