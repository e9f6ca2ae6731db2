#include <algorithm>

#include "average/averaging_impl.h"
#include "average/averaging_mode.h"
#include "parallel/engine/elastic_check.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme {

using detail::concat;
using detail::Exchange;
using detail::FlatState;
using detail::Held;

namespace {

bool is_buffer(const StateTensor& tensor) {
  return tensor.kind == kBufferKind;
}

bool is_state(const StateTensor& tensor) {
  return tensor.kind.starts_with("optimizer.");
}

}  // namespace

Averaging::Impl::Impl(EngineBase& engine,
                      const Replicas& replicas,
                      const Mode& mode,
                      const AveragingOptions& options)
    : engine_(engine),
      replicas_(replicas),
      mode_(mode),
      options_(options),
      frozen_([&] {
        const std::vector<std::string> names = engine.frozen();
        return std::set<std::string>(names.begin(), names.end());
      }()),
      held_(engine.options().zero == 0 && replicas.mine()->size() > 1 ? Held::kByAll
                                                                      : Held::kByEach) {
  detail::check_averaging(mode_, options_);
  detail::check_elastic("Averaging");
  TRIREME_CHECK(&engine_.ranks() == replicas_.mine().get(),
                "Averaging: expected an engine of this rank's replica: give it replicas.mine() as "
                "its ranks");
  check_same_on_all_ranks(replicas_.world(),
                          "the averaging",
                          {detail::description_of(mode_, options_)},
                          "give every rank the same mode and options");
  on_all_ranks(replicas_.world(), [&] {  // of the replicas, some may be on one machine
    detail::check_engine_options(engine_.options(), mode_, replicas_);
  });
  std::vector<std::string> lines;
  const StateView own = engine_.state().view;
  for (const StateSlice& slice : own.slices) {
    lines.push_back(
        concat("{}, elements {} to {}",
               {own.tensors[slice.tensor].title(), slice.range.begin, slice.range.end}));
  }
  check_same_on_all_ranks(replicas_.across(),
                          "what the replicas' engines hold",
                          lines,
                          "build the same model, optimizer and EngineOptions in every replica");
  if (const auto* diloco = std::get_if<DiLoCo>(&mode_)) {
    outer_.emplace(diloco->outer, exchange_, held_, [this](const StateTensor& tensor) {
      return is_weight(tensor);
    });
  }
  change([this](const StateView& into) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      exchange_.take_first(
          FlatState(into, static_cast<Dtype>(dtype), [](const StateTensor& tensor) {
            return tensor.kind == kWeightKind || tensor.kind == kAverageKind || is_buffer(tensor);
          }));
    }
    if (outer_) {
      outer_->begin(into);
    }
  });
}

std::int64_t Averaging::Impl::period() const {
  std::int64_t steps = detail::steps_of(mode_);
  for (const AveragingOptions::Change& change : options_.schedule) {
    steps = steps_ > change.from ? change.steps : steps;  // the step that was taken has steps_ - 1
  }
  return steps;
}

std::int64_t Averaging::Impl::next() const {
  std::int64_t period = detail::steps_of(mode_);
  std::int64_t after = steps_;  // and not before
  const auto due = [&] { return std::max(after + 1, steps_ - since_ + period); };
  for (const AveragingOptions::Change& change : options_.schedule) {
    if (due() <= change.from) {
      break;
    }
    period = change.steps;
    after = std::max(after, change.from);
  }
  return due();
}

bool Averaging::Impl::step() {
  ++steps_;
  ++since_;
  if (since_ < period()) {
    together_ = false;
    return false;
  }
  average();
  return true;
}

void Averaging::Impl::average() {
  const auto begin = Clock::now();
  const auto* gossip = std::get_if<Gossip>(&mode_);
  const detail::Neighbours neighbours =
      gossip == nullptr
          ? detail::Neighbours{}
          : detail::neighbours_of(replicas_.number(), replicas_.count(), *gossip, use_.averagings);
  const auto exchange = [&](const FlatState& run, Held held, const Exchange::Then& then = {}) {
    if (gossip != nullptr) {
      exchange_.gossip(run, held, neighbours);
    } else {
      exchange_.mean(run, held, then);
    }
  };
  change([&](const StateView& into) {
    const Exchange::Then outer = [this](std::span<double> means) { outer_->apply(means); };
    if (outer_) {
      outer_->rewind();
    }
    for (const Dtype dtype : detail::kAveragedDtypes) {
      exchange({into, dtype, [this](const StateTensor& t) { return is_weight(t); }},
               held_,
               outer_ ? outer : Exchange::Then());
      exchange({into, dtype, [this](const StateTensor& t) { return is_beside_weights(t); }}, held_);
      exchange({into, dtype, is_buffer}, Held::kByEach);
    }
    if (outer_) {
      outer_->take_weights(into);
    }
  });
  since_ = 0;
  together_ = gossip == nullptr || replicas_.count() == 1;
  ++use_.averagings;
  count_since(begin);
}

void Averaging::Impl::set_steps(std::int64_t steps) {
  detail::check_steps(steps);
  std::erase_if(options_.schedule,
                [this](const AveragingOptions::Change& change) { return change.from >= steps_; });
  options_.schedule.push_back({steps_, steps});
}

void Averaging::Impl::join() {
  const bool gossips = std::holds_alternative<Gossip>(mode_);
  if (!together_ && !gossips) {
    average();
  }
  const auto begin = Clock::now();
  change([&](const StateView& into) {
    for (const Dtype dtype : detail::kAveragedDtypes) {
      if (!together_) {
        exchange_.mean({into, dtype, [this](const StateTensor& t) { return is_weight(t); }}, held_);
        exchange_.mean({into, dtype, [](const StateTensor& t) { return t.kind == kAverageKind; }},
                       held_);
        exchange_.mean({into, dtype, is_buffer}, Held::kByEach);
      }
      exchange_.mean({into, dtype, is_state}, held_);
    }
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      exchange_.take_first(
          FlatState(into, static_cast<Dtype>(dtype), [](const StateTensor& tensor) {
            return (is_buffer(tensor) || is_state(tensor)) && !is_float(tensor.dtype);
          }));
    }
  });
  since_ = 0;
  together_ = true;
  count_since(begin);
}

void Averaging::Impl::with_mean(const std::function<void()>& body) {
  if (together_) {
    body();
    return;
  }
  std::vector<std::vector<std::byte>> kept;
  const auto each_run = [this](const StateView& into, const auto& use) {
    for (const Dtype dtype : detail::kAveragedDtypes) {
      use(FlatState(into,
                    dtype,
                    [this](const StateTensor& tensor) {
                      return is_weight(tensor) || tensor.kind == kAverageKind;
                    }),
          held_);
      use(FlatState(into, dtype, is_buffer), Held::kByEach);
    }
  };
  const auto begin = Clock::now();
  change([&](const StateView& into) {
    each_run(into, [&](const FlatState& run, Held held) {
      kept.emplace_back(detail::size_of(run.numel()) * dtype_bytes(run.dtype()));
      run.read({0, run.numel()}, kept.back().data());
      exchange_.mean(run, held);
    });
  });
  count_since(begin);
  const auto give_back = [&] {
    std::size_t next = 0;
    change([&](const StateView& into) {
      each_run(into, [&](const FlatState& run, Held) {
        run.write({0, run.numel()}, kept[next++].data());
      });
    });
  };
  try {
    body();
  } catch (const CommError&) {
    throw;  // the ranks are lost, with whom it would be given back
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

Averaging::Averaging(EngineBase& engine,
                     const Replicas& replicas,
                     const Mode& mode,
                     const AveragingOptions& options)
    : impl_(std::make_unique<Impl>(engine, replicas, mode, options)) {}
Averaging::~Averaging() = default;

bool Averaging::step() {
  return impl_->step();
}
void Averaging::average() {
  impl_->average();
}
void Averaging::set_steps(std::int64_t steps) {
  impl_->set_steps(steps);
}
void Averaging::join() {
  impl_->join();
}
void Averaging::with_mean(const std::function<void()>& body) {
  impl_->with_mean(body);
}
EngineState Averaging::state() {
  return impl_->state(Impl::Means::kExchanged);
}
EngineState Averaging::state_to_keep() {
  return impl_->state(Impl::Means::kLeftOut);
}
std::string Averaging::progress() const {
  return impl_->progress().to_text();
}
void Averaging::restore(const std::function<void(const StateView& into)>& fill,
                        const std::string& progress) {
  impl_->restore(fill, progress);
}
std::int64_t Averaging::steps() const {
  return impl_->steps();
}
std::int64_t Averaging::next() const {
  return impl_->next();
}
Communicator& Averaging::ranks() const {
  return impl_->ranks();
}
const AveragingUse& Averaging::use() const {
  return impl_->use();
}

}  // namespace trireme
