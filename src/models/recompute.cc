#include "trireme/models/recompute.h"

#include <algorithm>
#include <optional>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::models {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Forward = std::function<Tensor(const Tensor&)>;

// Whether operators run in a lower precision, and in which, where the input is.
struct AutocastState {
  explicit AutocastState(at::DeviceType where) : device(where) {}
  at::DeviceType device;
  bool enabled = at::autocast::is_autocast_enabled(device);
  at::ScalarType type = at::autocast::get_autocast_dtype(device);
  bool caches = at::autocast::is_autocast_cache_enabled();
};

// Another such state while it lives. No cast of a weight is taken over from what was before or left
// to what comes after: it may belong to another graph, or to none.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state) : before_(state.device) {
    at::autocast::clear_cache();
    set(state);
  }
  ~AutocastScope() {
    at::autocast::clear_cache();
    set(before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  static void set(const AutocastState& state) {
    at::autocast::set_autocast_enabled(state.device, state.enabled);
    at::autocast::set_autocast_dtype(state.device, state.type);
    at::autocast::set_autocast_cache_enabled(state.caches);
  }
  AutocastState before_;
};

// What backward needs; travels to it in the context's saved data.
struct Saved : torch::CustomClassHolder {
  explicit Saved(at::DeviceType device) : autocast(device) {}
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
  at::Generator random;    // as it was before forward
  AutocastState autocast;  // the same
  std::vector<Tensor> parameters;
};

// Each once, however many names it is registered under.
std::vector<Tensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) {
    const bool known =
        std::ranges::any_of(result, [&](const Tensor& other) { return other.is_same(parameter); });
    if (parameter.requires_grad() && !known) {
      result.push_back(parameter);
    }
  }
  return result;
}

at::Generator generator_of(const Tensor& input) {
  return at::globalContext().defaultGenerator(input.device());
}

// The state of the input's default generator, put back at the end.
class RandomState {
 public:
  RandomState(const Tensor& input, const at::Generator& state)
      : generator_(generator_of(input)), after_(generator_.clone()) {
    set(state);
  }
  ~RandomState() { set(after_); }
  RandomState(const RandomState&) = delete;
  RandomState& operator=(const RandomState&) = delete;

 private:
  void set(const at::Generator& state) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state.get_state());
  }
  at::Generator generator_;
  at::Generator after_;
};

// Buffers (running statistics) as they are now, put back at the end.
class BufferState {
 public:
  explicit BufferState(const torch::nn::Module& module) : buffers_(module.buffers()) {
    for (const Tensor& buffer : buffers_) {
      values_.push_back(buffer.defined() ? buffer.clone() : Tensor());
    }
  }
  ~BufferState() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].defined()) {
        buffers_[i].copy_(values_[i]);
      }
    }
  }
  BufferState(const BufferState&) = delete;
  BufferState& operator=(const BufferState&) = delete;

 private:
  std::vector<Tensor> buffers_;
  std::vector<Tensor> values_;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  // What runs inside is known: whoever walks the graph can go on from here.
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context,
                        const Tensor& input,
                        const c10::intrusive_ptr<Saved>& saved,
                        const at::TensorList& /*parameters*/) {
    saved->random = generator_of(input).clone();
    context->save_for_backward({input});
    context->saved_data["saved"] = c10::IValue::make_capsule(
        c10::static_intrusive_pointer_cast<torch::CustomClassHolder>(saved));
    const torch::NoGradGuard no_grad;
    // A cast of a weight that is made without a graph must not be found by those who need one.
    AutocastState without_cache = saved->autocast;
    without_cache.caches = false;
    std::optional<AutocastScope> scope;
    if (without_cache.enabled) {
      scope.emplace(without_cache);
    }
    return saved->forward(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved =
        c10::static_intrusive_pointer_cast<Saved>(context->saved_data["saved"].toCapsule());
    const Tensor before = context->get_saved_variables()[0];
    const Tensor input = before.detach().requires_grad_(context->needs_input_grad(0));
    variable_list wanted;
    if (input.requires_grad()) {
      wanted.push_back(input);
    }
    wanted.insert(wanted.end(), saved->parameters.begin(), saved->parameters.end());
    variable_list found;
    {
      const RandomState random(input, saved->random);
      const BufferState buffers(*saved->module);
      const AutocastScope autocast(saved->autocast);
      const torch::AutoGradMode enable(true);
      const Tensor output = saved->forward(input);
      // Gradients are captured on their way to the parameters' accumulators and handed on as this
      // node's own: hooks run once, in the outer pass.
      found = torch::autograd::grad({output},
                                    wanted,
                                    {gradients[0]},
                                    /*retain_graph=*/false,
                                    /*create_graph=*/false,
                                    /*allow_unused=*/true);
    }
    variable_list result;
    std::size_t next = 0;
    result.push_back(input.requires_grad() ? found[next++] : Tensor());
    result.emplace_back();  // `saved`
    while (next < found.size()) {
      result.push_back(found[next++]);
    }
    return result;
  }
};

}  // namespace

Tensor recompute(const std::shared_ptr<torch::nn::Module>& module,
                 const Tensor& input,
                 Forward forward) {
  if (!torch::GradMode::is_enabled()) {
    return forward(input);
  }
  auto saved = c10::make_intrusive<Saved>(input.device().type());
  saved->module = module;
  saved->forward = std::move(forward);
  saved->parameters = trainable_parameters(*module);
  return Recompute::apply(input, saved, at::TensorList(saved->parameters));
}

}  // namespace trireme::models
