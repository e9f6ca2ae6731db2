// What checkpoints see of replicas.

#include <memory>
#include <vector>

#include "average/averaging_impl.h"
#include "average/averaging_mode.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {

using detail::Held;
using detail::ReplicaProgress;
using detail::StateForm;

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

}  // namespace trireme
