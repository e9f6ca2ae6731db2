// What checkpoints see of the engine: named ranges, and how they are put back.

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include "device/buffer.h"
#include "parallel/engine/engine_parts.h"
#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace detail {
namespace {

using Json = nlohmann::json;

// Copies that a view points to, and the tensors they are of, which a restored one goes back to.
struct Copies {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // copy, original
  at::Tensor generator;
  struct OfGpu {
    device::Buffer copy;
    Span original;
  };
  std::vector<OfGpu> runs;

  // Where the host sees a run: where it is, or in a copy.
  std::byte* place_of(const Span& run) {
    if (run.device().is_host()) {
      return run.bytes();
    }
    device::Buffer copy(run.size_bytes());
    stream_for(run).copy({copy.data(), run.numel(), run.dtype()}, run);
    runs.push_back({std::move(copy), run});
    return runs.back().copy.data();
  }
  // Copies of runs go back to where they are from.
  void put_back() const {
    for (const OfGpu& run : runs) {
      const Span& to = run.original;
      stream_for(to).copy(to, {run.copy.data(), to.numel(), to.dtype()});
    }
  }
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

// What EngineBase::progress() writes.
struct Progress {
  std::string optimizer;
  std::int64_t steps = 0;
  double base_rate = 0;
  std::optional<LossScaler::State> loss_scale;
  std::map<std::string, std::int64_t> updates;  // of parameters that were not used in every step
};

std::int64_t count_in(const Json& json, const std::string& name) {
  TRIREME_CHECK(
      json.is_number_integer() && json.get<std::int64_t>() >= 0,
      "restore(): expected what progress() returned, where {} is a count of 0 or more, found {}",
      {name, json.dump()});
  return json.get<std::int64_t>();
}

Progress parse_progress(const std::string& text) {
  Progress progress;
  try {
    TRIREME_CHECK(!json_too_deep_at(text),
                  "restore(): expected what progress() returned, found JSON of more than {} levels",
                  {kMostJsonLevels});
    const Json json = Json::parse(text);
    TRIREME_CHECK(!json.contains("replicas"),
                  "the state is one of {} replicas, found one engine: load it with Averaging "
                  "(--sync), or load the weights alone, which are their mean",
                  {json["replicas"].dump()});
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

// Weights, states and averages.
void append_parameters(EngineParts& e, bool saved, StateView& view, Copies& copies) {
  const ModelPlan& plan = e.plan;
  std::vector<std::vector<OptimizerMemory::Kept>> kept;
  std::size_t kinds = 0;
  for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
    kept.push_back(e.optimizer->memory().kept(p));
    kinds = std::max(kinds, kept.back().size());
  }
  for (std::size_t k = 0; k < kinds; ++k) {
    for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
      const Parameter& parameter = plan.parameters[p];
      const std::size_t u = plan.places[p].unit;
      if (k >= kept[p].size()) {
        continue;  // frozen: weights only
      }
      const auto& [kind, run, sizes, store, place] = kept[p][k];
      if (!sizes.empty()) {  // the same on every rank, in the host's memory
        view.tensors.push_back({kind, parameter.name, run.dtype(), sizes, {}});
        if (!saved || e.ranks->rank() == 0) {
          view.slices.push_back({view.tensors.size() - 1, {0, run.numel()}, run.bytes()});
        }
        continue;
      }
      const bool rows = parameter.strides == row_strides(parameter.sizes);
      view.tensors.push_back({kind,
                              parameter.name,
                              run.dtype(),
                              parameter.sizes,
                              rows ? std::vector<std::int64_t>() : parameter.strides});
      const Range whole = plan.range_of(p);
      const Range held = intersection(whole, plan.ownership.updated(u));
      const Range part = saved ? intersection(whole, plan.ownership.saved(u)) : held;
      if (part.empty()) {
        continue;
      }
      const Range within{part.begin - whole.begin, part.end - whole.begin};
      if (store != nullptr) {
        const auto skipped = static_cast<std::uint64_t>(part.begin - held.begin);
        view.slices.push_back({view.tensors.size() - 1,
                               within,
                               nullptr,
                               store,
                               place + skipped * dtype_bytes(run.dtype())});
      } else {
        view.slices.push_back(
            {view.tensors.size() - 1,
             within,
             copies.place_of(part_of(run, {part.begin - held.begin, part.end - held.begin}))});
      }
    }
  }
}

// Buffers are whole everywhere, and the same where the engine keeps them so.
void append_buffers(EngineParts& e, bool saved, StateView& view, Copies& copies) {
  int writer = 0;
  for (const auto& item : e.model->named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined()) {
      continue;
    }
    view.tensors.push_back(tensor_of_buffer(item.key(), buffer));
    const at::NoGradGuard no_grad;
    at::Tensor copy = buffer.detach().cpu().clone(at::MemoryFormat::Contiguous);
    if ((!saved || writer == e.ranks->rank()) && buffer.numel() > 0) {
      view.slices.push_back({view.tensors.size() - 1,
                             {0, view.tensors.back().numel()},
                             static_cast<std::byte*>(copy.data_ptr())});
    }
    copies.buffers.emplace_back(std::move(copy), buffer);
    writer = e.options.broadcast_buffers ? (writer + 1) % e.ranks->size() : 0;
  }
}

void append_generators(const Communicator& ranks, StateView& view, Copies& copies) {
  copies.generator = generator_state().clone();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    view.tensors.push_back(
        {kRandomKind, concat("rank-", rank), Dtype::kUint8, {copies.generator.numel()}, {}});
    if (rank == ranks.rank()) {
      view.slices.push_back({view.tensors.size() - 1,
                             {0, copies.generator.numel()},
                             static_cast<std::byte*>(copies.generator.data_ptr())});
    }
  }
}

// What was written to the weights reaches everyone who reads them.
void take_values(EngineParts& e, Update& update, bool averages) {
  OptimizerMemory& memory = e.optimizer->memory();
  on_all_ranks(*e.ranks, [&] {  // some of it may be on a disk
    for (std::size_t u = 0; u < e.plan.units.size(); ++u) {
      memory.round_masters(u);
      if (averages) {
        memory.take_averages(u);
      }
    }
    memory.flush();
  });
  for (std::size_t u = 0; u < e.plan.units.size(); ++u) {
    update.written(u);
  }
  for (std::size_t p = 0; p < e.plan.parameters.size(); ++p) {
    update.changed(p);
  }
  update.finish();
}

void take_copies(const EngineState& state, bool generator) {
  const auto& copies = *static_cast<const Copies*>(state.owner.get());
  const at::NoGradGuard no_grad;
  for (const auto& [copy, buffer] : copies.buffers) {
    write_elements(buffer, copy);
  }
  if (generator) {
    at::Generator default_generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(default_generator.mutex());
    default_generator.set_state(copies.generator);
  }
}

void take_progress(EngineParts& e, const Progress& saved) {
  e.steps = saved.steps;
  e.base_rate = saved.base_rate;
  if (e.scaler && saved.loss_scale) {
    e.scaler->restore(*saved.loss_scale);
  }
  std::vector<std::int64_t> updates(e.plan.parameters.size(), e.steps);
  for (std::size_t p = 0; p < updates.size(); ++p) {
    const auto other = saved.updates.find(e.plan.parameters[p].name);
    updates[p] = other == saved.updates.end() ? e.steps : other->second;
  }
  e.optimizer->rules().set_steps(std::move(updates));
}

// `saved`: each element once over all ranks; otherwise all that this rank holds.
EngineState state_of(EngineParts& e, bool saved) {
  EngineState state;
  StateView& view = state.view;
  auto copies = std::make_shared<Copies>();
  append_parameters(e, saved, view, *copies);
  finish_work(e.plan.device);
  e.gradients->describe(view, saved);
  append_buffers(e, saved, view, *copies);
  append_generators(*e.ranks, view, *copies);
  state.owner = std::move(copies);
  return state;
}

}  // namespace
}  // namespace detail

using detail::EngineParts;

EngineState EngineBase::state() {
  parts().check_between_steps("state()");
  return detail::state_of(parts(), /*saved=*/true);
}

std::string EngineBase::progress() const {
  const EngineParts& e = parts();
  detail::Json json = {{"optimizer", e.optimizer->rules().optimizer().name()},
                       {"steps", e.steps},
                       {"base_rate", e.base_rate}};
  if (e.scaler) {
    const LossScaler::State& scale = e.scaler->state();
    json["loss_scale"] = {
        {"scale", scale.scale}, {"good_steps", scale.good_steps}, {"skipped", scale.skipped}};
  }
  // Most parameters are used in every step: only the others are named.
  json["updates"] = detail::Json::object();
  for (std::size_t p = 0; p < e.plan.parameters.size(); ++p) {
    if (e.optimizer->rules().steps()[p] != e.steps) {
      json["updates"][e.plan.parameters[p].name] = e.optimizer->rules().steps()[p];
    }
  }
  return json.dump();
}

void EngineBase::restore(const std::function<void(const StateView& into)>& fill,
                         const std::string& progress) {
  EngineParts& e = parts();
  e.check_between_steps("restore()");
  check_same_on_all_ranks(*e.ranks,
                          "the progress that restore() was given",
                          {progress.empty() ? "none" : progress},
                          "give every rank the same text, or none on every rank");
  if (!progress.empty()) {
    const std::string saved = detail::parse_progress(progress).optimizer;
    TRIREME_CHECK(saved == e.optimizer->rules().optimizer().name(),
                  "the state was saved with the optimizer {}, but this engine has {}: use the same "
                  "one, or load only the weights",
                  {saved, e.optimizer->rules().optimizer().name()});
  }
  const EngineState state = detail::state_of(e, /*saved=*/false);
  detail::Update update(e.plan, *e.memory);
  try {
    on_all_ranks(*e.ranks, [&] { fill(state.view); });
    static_cast<const detail::Copies*>(state.owner.get())->put_back();
    detail::finish_work(e.plan.device);
    detail::take_values(e, update, /*averages=*/progress.empty());
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    update.finish();
    if (dynamic_cast<const ConfigError*>(&error) == nullptr) {  // which comes before any change
      e.phase.enter(detail::Phase::kHalfLoaded);
    }
    throw;
  }
  detail::take_copies(state, /*generator=*/!progress.empty());
  if (!progress.empty()) {
    detail::take_progress(e, detail::parse_progress(progress));
  }
}

}  // namespace trireme
