#include "parallel/engine/model_move.h"

#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

void ModelMove::take(std::size_t unit) {
  for (const std::size_t p : parts_.plan.units[unit].parameters) {
    const Parameter& parameter = parts_.plan.parameters[p];
    const bool same = c10::toRealValueType(parameter.tensor.scalar_type()) ==
                          scalar_type_of(parts_.plan.units[unit].dtype) &&
                      !parts_.plan.units[unit].rounding &&
                      real_strides(parameter.tensor) == parameter.strides &&
                      (watched_of(parameter.tensor) == nullptr || !parameter.trainable);
    // Else what the engine has is what the model had, and can be given back from there.
    if (!same) {
      originals_[p] = parameter.tensor.variable_data();
    }
  }
  OptimizerMemory& states = parts_.optimizer->memory();
  states.take_masters(unit);
  parts_.memory->adopt(unit);
  if (states.disk() == nullptr) {
    states.take_averages(unit);
    return;
  }
  on_all_ranks(*parts_.owners, [&] {  // whose disk may fail on some ranks only
    states.take_averages(unit);
    states.flush();
  });
}

void ModelMove::give_back() {
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  std::vector<std::string> lost;
  std::string why;
  const auto settle = [&] {
    try {
      parts_.memory->settle();
    } catch (const Error& error) {
      why = error.what();
    }
  };
  settle();
  for (std::size_t i = 0; i < originals_.size(); ++i) {
    const Parameter& parameter = parts_.plan.parameters[i];
    const Watched* watched = watched_of(parameter.tensor);
    if (watched == nullptr || watched->holder() != Watched::Holder::kEngine) {
      continue;  // it has not moved
    }
    try {
      parameter.tensor.set_data(originals_[i].defined() ? originals_[i] : parts_.whole(i));
    } catch (const std::exception& error) {
      lost.push_back(parameter.name);
      why = error.what();
    }
  }
  settle();
  if (!lost.empty()) {
    log(LogLevel::kError,
        concat("an engine could not be built, and these parameters of its model could not be given "
               "back: {} ({}): build the model again",
               {listed(lost), why}));
  }
}

}  // namespace trireme::detail
