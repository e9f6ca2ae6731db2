#include "trireme/average/averaging.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "average/averaging_mode.h"
#include "average/exchange.h"
#include "average/outer_step.h"
#include "average/replica_state.h"
#include "parallel/engine/elastic_check.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/seconds_since.h"

namespace trireme {

using detail::concat;
using detail::Exchange;
using detail::FlatState;
using detail::Held;
using detail::OuterStep;
using detail::ReplicaProgress;
using detail::StateForm;

namespace {

bool is_buffer(const StateTensor& tensor) {
  return tensor.kind == kBufferKind;
}

}  // namespace

class Averaging::Impl {
 public:
  Impl(EngineBase& engine,
       const Replicas& replicas,
       const Mode& mode,
       const AveragingOptions& options);

  bool step();
  void average();
  void with_mean(const std::function<void()>& body);

  enum class Means { kExchanged, kLeftOut };
  EngineState state(Means which);
  ReplicaProgress progress() const;
  void restore(const std::function<void(const StateView& into)>& fill, const std::string& progress);

  std::int64_t steps() const { return steps_; }
  std::int64_t next() const;
  Communicator& ranks() const { return replicas_.world(); }
  const AveragingUse& use() const { return use_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t period() const;
  // Changes what this rank's engine holds.
  void change(const std::function<void(const StateView& into)>& how) {
    engine_.restore(how, engine_.progress());
  }
  void count_since(Clock::time_point begin) {
    use_.seconds += detail::seconds_since(begin);
    use_.sent_bytes = exchange_.sent_bytes();
  }
  bool is_weight(const StateTensor& tensor) const {
    return tensor.kind == kWeightKind && frozen_.count(tensor.name) == 0;
  }
  bool differs(const StateTensor& tensor) const { return is_weight(tensor) || is_buffer(tensor); }
  // What is averaged with the weights, and divided inside a replica as they are.
  bool is_beside_weights(const StateTensor& tensor) const {
    return tensor.kind == kAverageKind ||
           (options_.states && tensor.kind.starts_with("optimizer."));
  }

  EngineBase& engine_;
  const Replicas replicas_;
  const Mode mode_;
  const AveragingOptions options_;
  const std::set<std::string> frozen_;
  // Of everything but buffers, which every rank has.
  const Held held_;
  Exchange exchange_{replicas_};
  std::optional<OuterStep> outer_;

  std::int64_t steps_ = 0;
  std::int64_t since_ = 0;  // the last averaging
  bool together_ = true;    // all replicas have the same weights
  AveragingUse use_;
};

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
    TRIREME_CHECK(
        engine_.options().prune.fraction == 0,
        "Averaging: expected an engine without EngineOptions::prune, found one that prunes "
        "{} of its weights: each replica prunes others, and averages bring them back",
        {engine_.options().prune.fraction});
    TRIREME_CHECK(!std::holds_alternative<DiLoCo>(mode_) ||
                      engine_.options().shard_group == ShardGroup::kWorld ||
                      replicas_.mine()->one_machine(),
                  "DiLoCo: expected EngineOptions::shard_group kWorld in a replica on several "
                  "machines, found kMachine: leave it out");
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
  body();
  std::size_t next = 0;
  change([&](const StateView& into) {
    each_run(into, [&](const FlatState& run, Held) {
      run.write({0, run.numel()}, kept[next++].data());
    });
  });
}

EngineState Averaging::Impl::state(Means which) {
  const auto begin = Clock::now();
  struct Owner {
    EngineState engine;
    std::vector<std::vector<std::byte>> means;
  };
  auto owner = std::make_shared<Owner>();
  owner->engine = engine_.state();
  const StateView& own = owner->engine.view;
  std::vector<std::byte*> means(own.slices.size(), nullptr);
  if (!together_ && which == Means::kExchanged) {
    StateView copies{own.tensors, {}};
    for (std::size_t i = 0; i < own.slices.size(); ++i) {
      const StateSlice& slice = own.slices[i];
      const StateTensor& tensor = own.tensors[slice.tensor];
      if (differs(tensor) && is_float(tensor.dtype)) {
        const std::size_t bytes = detail::size_of(slice.range.size()) * dtype_bytes(tensor.dtype);
        owner->means.emplace_back(slice.data, slice.data + bytes);
        means[i] = owner->means.back().data();
        copies.slices.push_back({slice.tensor, slice.range, means[i]});
      }
    }
    for (const Dtype dtype : detail::kAveragedDtypes) {
      exchange_.mean({copies, dtype, [](const StateTensor&) { return true; }}, Held::kByEach);
    }
    count_since(begin);
  }
  EngineState state;
  state.view = detail::state_to_save(own,
                                     means,
                                     together_ ? StateForm::kTogether : StateForm::kApart,
                                     replicas_,
                                     [this](const StateTensor& t) { return differs(t); });
  if (outer_) {
    outer_->describe(!together_, state.view);
  }
  state.owner = std::move(owner);
  return state;
}

ReplicaProgress Averaging::Impl::progress() const {
  return {.form = together_ ? StateForm::kTogether : StateForm::kApart,
          .mode = detail::mode_name(mode_),
          .steps = steps_,
          .since = since_,
          .averagings = use_.averagings,
          .engines = all_texts(replicas_.across(), engine_.progress())};
}

void Averaging::Impl::restore(const std::function<void(const StateView& into)>& fill,
                              const std::string& progress) {
  check_same_on_all_ranks(replicas_.world(),
                          "the progress that restore() was given",
                          {progress.empty() ? "none" : progress},
                          "give every rank the same text, or none on every rank");
  ReplicaProgress saved;
  saved.form = StateForm::kOneEngine;
  saved.engines.resize(detail::index(replicas_.count()));
  if (!progress.empty()) {
    saved = ReplicaProgress::parse(progress, replicas_.count());
    TRIREME_CHECK(saved.form == StateForm::kOneEngine || saved.mode == detail::mode_name(mode_),
                  "the state was saved with averaging {}, but this one is {}: use the same one, or "
                  "load the weights alone",
                  {saved.mode, detail::mode_name(mode_)});
  }
  engine_.restore(
      [&](const StateView& into) {
        StateView all = detail::state_to_fill(
            into, saved.form, replicas_, [this](const StateTensor& t) { return differs(t); });
        if (outer_ && saved.form != StateForm::kOneEngine) {
          outer_->describe(saved.form == StateForm::kApart, all);
        }
        // The engine tells its own replica of what fails.
        on_all_ranks(replicas_.world(), [&] { fill(all); });
        if (outer_ && saved.form == StateForm::kOneEngine) {
          outer_->begin(into);
        } else if (outer_ && saved.form == StateForm::kTogether) {
          outer_->take_weights(into);
        }
      },
      saved.engines[detail::index(replicas_.number())]);
  if (!progress.empty()) {
    steps_ = saved.steps;
    use_.averagings = saved.averagings;
    together_ = saved.form != StateForm::kApart;
  }
  since_ = saved.since;
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
