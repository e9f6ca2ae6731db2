// What checkpoints see of the engine: named ranges, and how they are put back.

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include "parallel/broadcast.h"
#include "parallel/engine_core.h"
#include "parallel/half_autocast.h"
#include "parallel/same_on_all_ranks.h"
#include "trireme/comm/first_failure.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

// Copies that a view points to, and the tensors they are of, which a restored one goes back to.
struct Copies {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // copy, original
  at::Tensor generator;
};

// A buffer's shape as checkpoints have it: elements of other types are their bytes.
StateTensor tensor_of_buffer(const std::string& name, const at::Tensor& buffer) {
  StateTensor tensor;
  tensor.kind = kBufferKind;
  tensor.name = name;
  tensor.shape = buffer.sizes().vec();
  if (const auto dtype = find_dtype(buffer.scalar_type())) {
    tensor.dtype = *dtype;
  } else {
    tensor.dtype = Dtype::kUint8;
    tensor.shape.push_back(static_cast<std::int64_t>(buffer.element_size()));
  }
  return tensor;
}

// A state of LibTorch's default generator of this process.
at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// What EngineCore::progress() writes.
struct Progress {
  std::string optimizer;
  std::int64_t steps = 0;
  double base_rate = 0;
  std::optional<LossScaler::State> loss_scale;
  std::map<std::string, std::int64_t> updates;  // of parameters that were not used in every step
};

std::int64_t count_in(const Json& json, const std::string& name) {
  TRIREME_CHECK(json.is_number_integer() && json.get<std::int64_t>() >= 0,
                "restore(): expected what progress() returned, where ",
                name,
                " is a count of 0 or more, found ",
                json.dump());
  return json.get<std::int64_t>();
}

Progress parse_progress(const std::string& text) {
  Progress progress;
  try {
    TRIREME_CHECK(!json_too_deep_at(text),
                  "restore(): expected what progress() returned, found JSON of more than ",
                  kMostJsonLevels,
                  " levels");
    const Json json = Json::parse(text);
    progress.optimizer = json.at("optimizer").get<std::string>();
    progress.steps = count_in(json.at("steps"), "steps");
    progress.base_rate = json.at("base_rate").get<double>();
    TRIREME_CHECK(std::isfinite(progress.base_rate) && progress.base_rate >= 0,
                  "restore(): expected what progress() returned, where base_rate is a learning "
                  "rate of 0 or more, found ",
                  progress.base_rate);
    for (const auto& [name, updates] : json.at("updates").get_ref<const Json::object_t&>()) {
      progress.updates[name] = count_in(updates, concat("updates of ", name));
    }
    if (json.contains("loss_scale")) {
      const Json& scale = json["loss_scale"];
      progress.loss_scale = LossScaler::State{scale.at("scale").get<double>(),
                                              count_in(scale.at("good_steps"), "good_steps"),
                                              count_in(scale.at("skipped"), "skipped")};
      LossScaler::check(*progress.loss_scale);
    }
  } catch (const Json::exception& error) {
    throw ConfigError(concat("restore(): expected what progress() returned: ", error.what()));
  }
  return progress;
}

// Failures as all ranks hear of them: one letter for the kind, then the text.
constexpr char kConfig = 'c';
constexpr char kOther = 'o';

}  // namespace

EngineState EngineCore::view(bool saved) {
  EngineState state;
  auto copies = std::make_shared<Copies>();
  StateView& view = state.view;
  std::vector<std::vector<ShardedOptimizer::Memory>> memories;
  std::size_t kinds = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    memories.push_back(optimizer_->memories(u));
    kinds = std::max(kinds, memories.back().size());
  }
  for (std::size_t k = 0; k < kinds; ++k) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const Parameter& parameter = parameters_[p];
      const Place& place = places_[p];
      if (k >= memories[place.unit].size()) {
        continue;  // frozen: weights only
      }
      const ShardedOptimizer::Memory& memory = memories[place.unit][k];
      const bool rows = parameter.strides == row_strides(parameter.sizes);
      view.tensors.push_back({memory.kind,
                              parameter.name,
                              memory.dtype,
                              parameter.sizes,
                              rows ? std::vector<std::int64_t>() : parameter.strides});
      const Unit& unit = units_[place.unit];
      const Range held = optimizer_->range(place.unit);
      const std::int64_t offset = unit.layout.offset(place.index);
      const Range whole{offset, offset + parameter.numel};
      // Where every machine has everything, the first one saves it.
      const bool mine = ranks_->rank() == owners_->rank();
      const Range own = unit.ranges[static_cast<std::size_t>(owners_->rank())];
      const Range part = !saved ? intersection(whole, held)
                         : mine ? intersection(whole, own)
                                : Range{};
      if (!part.empty()) {
        view.slices.push_back({view.tensors.size() - 1,
                               {part.begin - offset, part.end - offset},
                               memory.data + static_cast<std::size_t>(part.begin - held.begin) *
                                                 dtype_bytes(memory.dtype)});
      }
    }
  }
  // Buffers are whole everywhere, and the same where the engine keeps them so.
  int writer = 0;
  for (const auto& item : model_->named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined()) {
      continue;
    }
    view.tensors.push_back(tensor_of_buffer(item.key(), buffer));
    const at::NoGradGuard no_grad;
    at::Tensor copy = buffer.detach().clone(at::MemoryFormat::Contiguous);
    if ((!saved || writer == ranks_->rank()) && buffer.numel() > 0) {
      view.slices.push_back({view.tensors.size() - 1,
                             {0, view.tensors.back().numel()},
                             static_cast<std::byte*>(copy.data_ptr())});
    }
    copies->buffers.emplace_back(std::move(copy), buffer);
    writer = options_.broadcast_buffers ? (writer + 1) % ranks_->size() : 0;
  }
  copies->generator = generator_state().clone();
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    view.tensors.push_back(
        {kRandomKind, concat("rank-", rank), Dtype::kUint8, {copies->generator.numel()}, {}});
    if (rank == ranks_->rank()) {
      view.slices.push_back({view.tensors.size() - 1,
                             {0, copies->generator.numel()},
                             static_cast<std::byte*>(copies->generator.data_ptr())});
    }
  }
  state.owner = std::move(copies);
  return state;
}

EngineState EngineCore::state() {
  check_between_steps("state()");
  return view(/*saved=*/true);
}

std::string EngineCore::progress() const {
  Json json = {
      {"optimizer", optimizer_->rule().name()}, {"steps", steps_}, {"base_rate", base_rate_}};
  if (scaler_) {
    const LossScaler::State& scale = scaler_->state();
    json["loss_scale"] = {
        {"scale", scale.scale}, {"good_steps", scale.good_steps}, {"skipped", scale.skipped}};
  }
  // Most parameters are used in every step: only the others are named.
  json["updates"] = Json::object();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (optimizer_->steps()[p] != steps_) {
      json["updates"][parameters_[p].name] = optimizer_->steps()[p];
    }
  }
  return json.dump();
}

void EngineCore::restore(const std::function<void(const StateView& into)>& fill,
                         const std::string& progress) {
  check_between_steps("restore()");
  check_same_on_all_ranks("the progress that restore() was given",
                          {progress.empty() ? "none" : progress},
                          "give every rank the same text, or none on every rank",
                          *ranks_);
  if (!progress.empty()) {
    const std::string saved = parse_progress(progress).optimizer;
    TRIREME_CHECK(saved == optimizer_->rule().name(),
                  "the state was saved with the optimizer ",
                  saved,
                  ", but this engine has ",
                  optimizer_->rule().name(),
                  ": use the same one, or load only the weights");
  }
  EngineState state = view(/*saved=*/false);
  memory_->begin_update();
  std::string problem;
  std::exception_ptr thrown;
  const auto keep = [&](char kind, const std::exception& error) {
    problem = kind + std::string(error.what());
    thrown = std::current_exception();
  };
  try {
    fill(state.view);
  } catch (const ConfigError& error) {
    keep(kConfig, error);
  } catch (const std::exception& error) {
    keep(kOther, error);
  }
  if (const auto failure = first_failure(*ranks_, problem)) {
    memory_->finish_update();
    half_loaded_ = failure->reason[0] != kConfig;
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    const std::string text = concat("rank ", failure->rank, ": ", failure->reason.substr(1));
    if (!half_loaded_) {
      throw ConfigError(text);
    }
    throw CheckpointError("", -1, text);
  }
  finish_restore(state, progress);
}

void EngineCore::finish_restore(const EngineState& state, const std::string& progress) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    optimizer_->round_masters(u);
    memory_->updated(u);
    if (progress.empty()) {
      optimizer_->take_averages(u);
    }
  }
  memory_->finish_update();
  for (Parameter& parameter : parameters_) {
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  forget_casts();
  const auto& copies = *static_cast<const Copies*>(state.owner.get());
  {
    const at::NoGradGuard no_grad;
    for (const auto& [copy, buffer] : copies.buffers) {
      write_elements(buffer, copy);
    }
  }
  if (progress.empty()) {
    return;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(copies.generator);
  }
  const Progress saved = parse_progress(progress);
  steps_ = saved.steps;
  base_rate_ = saved.base_rate;
  if (scaler_ && saved.loss_scale) {
    scaler_->restore(*saved.loss_scale);
  }
  std::vector<std::int64_t> updates(parameters_.size(), steps_);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto other = saved.updates.find(parameters_[p].name);
    updates[p] = other == saved.updates.end() ? steps_ : other->second;
  }
  optimizer_->set_steps(std::move(updates));
}

}  // namespace trireme::detail
