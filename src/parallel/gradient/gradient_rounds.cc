#include "parallel/gradient/gradient_rounds.h"

#include <algorithm>

#include "parallel/gradient/compressed_path.h"
#include "parallel/gradient/dense_path.h"
#include "parallel/gradient/hooked_path.h"
#include "parallel/gradient/low_rank_path.h"
#include "parallel/gradient/sparse_path.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// What sums of groups and of machines do not have.
void check_sums(const PartContext& context) {
  const int group = context.ranks.sum_group();
  const int size = context.ranks.size();
  for (const Unit& unit : context.plan.units) {
    TRIREME_CHECK(!context.plan.ownership.by_machine() || !unit.sparse,
                  "parameter ",
                  unit.name,
                  " has sparse gradients: divide among all ranks (EngineOptions::shard_group)");
  }
  TRIREME_CHECK(group == 1 || size % group == 0 || group % size == 0,
                "sums add up groups of {} micro-batches (sum_group), which neither divides the {} "
                "ranks nor is a multiple of them: choose one that does",
                {group, size});
  for (const Unit& unit : context.plan.units) {
    TRIREME_CHECK(group == 1 || !unit.sparse,
                  "parameter ",
                  unit.name,
                  " has sparse gradients, which are added up one by one: leave sum_group at 1");
  }
}

}  // namespace

GradientRounds::GradientRounds(const PartContext& context, std::int64_t rounds)
    : context_(context),
      sums_(context),
      records_(context.plan.parameters.size(), context.ranks),
      path_of_(context.plan.parameters.size(), nullptr),
      present_(context.plan.parameters.size(), GradientState::kAbsent) {
  check_sums(context);
  make_paths();
  set_rounds(rounds);
}

// A path for those that it is made for; the order is that of their operations.
void GradientRounds::make_paths() {
  if (context_.options.gradient_hook) {
    paths_.push_back(std::make_unique<HookedPath>(context_, sums_));
  } else if (context_.options.compress && context_.options.compress->format().rank > 0) {
    paths_.push_back(std::make_unique<LowRankPath>(context_, sums_));
  } else if (context_.options.compress) {
    paths_.push_back(std::make_unique<CompressedPath>(context_, sums_));
  } else {
    paths_.push_back(std::make_unique<DensePath>(context_, sums_, records_));
  }
  paths_.push_back(std::make_unique<SparsePath>(context_, sums_));
  if (context_.options.compress && context_.options.compress_check > 0) {
    check_ = std::make_unique<ExactCheck>(context_, records_);
  }
  for (std::size_t p = 0; p < path_of_.size(); ++p) {
    if (context_.plan.parameters[p].trainable) {
      path_of_[p] = paths_[context_.plan.unit_of(p).sparse ? 1 : 0].get();
    }
  }
}

void GradientRounds::set_rounds(std::int64_t rounds) {
  for (const auto& path : paths_) {
    path->set_rounds(rounds);
  }
  if (check_) {
    check_->set_rounds(rounds);
  }
}

void GradientRounds::begin_round(bool last_of_this_rank, std::vector<bool> expected) {
  sums_.wait_until_released();
  round_.last_of_this_rank = last_of_this_rank;
  round_.expected = std::move(expected);
  std::fill(present_.begin(), present_.end(), GradientState::kAbsent);
  for (const auto& path : paths_) {
    path->begin_round(round_);
  }
  checked_ = check_ && check_->due();  // the same in all rounds of a step
}

void GradientRounds::add(std::size_t parameter, const at::Tensor& gradient) {
  TRIREME_CHECK(
      present_[parameter] == GradientState::kAbsent,
      "parameter {} got two gradients in one backward on rank {}: its layer is in two segments "
      "that are recomputed (activation checkpointing), each of which hands over a gradient of its "
      "own: put all uses of a layer into one segment, or recompute only one of them",
      {context_.plan.parameters[parameter].name, context_.ranks.rank()});
  const bool finite = path_of_[parameter]->add(parameter, gradient);
  if (checked_ && !context_.plan.unit_of(parameter).sparse) {
    check_->add(parameter, gradient);
  }
  present_[parameter] = finite ? GradientState::kPresent : GradientState::kNotFinite;
}

void GradientRounds::end_round(const RoundEnd& end) {
  for (const auto& path : paths_) {
    for (const std::size_t parameter : path->found_not_finite()) {
      present_[parameter] = GradientState::kNotFinite;
    }
  }
  const bool tells = !context_.one_communication() || round_.last_of_this_rank;
  if (tells) {
    for (const auto& path : paths_) {
      path->end_round(end.given_up);
    }
  }
  if (checked_) {
    check_->end_round(round_, tells, end.given_up);
  }
  if (tells) {
    records_.hear();
    if (!context_.one_communication()) {
      records_.forget_own();
    }
  }
  records_.note(present_);
  if (end.took_part) {
    records_.count_micro_batch();
  }
  if (tells) {
    records_.tell(end.joined, end.given_up, end.rate);
    ++round_.number;
  }
}

const Agreement& GradientRounds::finish() {
  for (const auto& path : paths_) {
    path->finish();
  }
  if (checked_) {
    check_->finish();
  }
  const Agreement& agreement = records_.agreement();
  sums_.publish();
  if (checked_ && agreement.bad_rank < 0 && agreement.given_up_rank < 0) {
    check_->compare(sums_, agreement.used);
  }
  return agreement;
}

void GradientRounds::end_step(StepOutcome outcome) {
  for (const auto& path : paths_) {
    path->end_step(outcome);
  }
  if (checked_) {
    check_->end_step(outcome);
    checked_ = false;
  }
  sums_.release();
  records_.reset();
  round_.number = 0;
}

CompressionUse GradientRounds::compression() const {
  CompressionUse use = paths_.front()->compression();
  if (check_) {
    use.check = check_->last();
  }
  return use;
}

void GradientRounds::describe(StateView& view, bool saved) {
  for (const auto& path : paths_) {
    path->describe(view, saved);
  }
}

}  // namespace trireme::detail
