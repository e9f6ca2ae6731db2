#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/optim/parameter_slice.h"

// The update rules, on flat memory. Parameter, gradient and states are read and written once.
// Values, betas and learning rates are double in the options and rounded once to the parameter's
// precision. L2 `weight_decay` is added to the gradient, except where a rule says that it is
// decoupled; `l1` adds l1 * sign(parameter) to the gradient.

namespace trireme {

namespace detail {
// The shortest text that is this number and no other.
std::string exact_text(double value);
}  // namespace detail

// What a rule keeps of a parameter between steps, as zeros at first.
struct OptimizerState {
  // NOLINTNEXTLINE(google-explicit-constructor): a rule's states are a list of names
  OptimizerState(const char* state) : name(state) {}
  OptimizerState(std::string state, std::vector<std::int64_t> whole)
      : name(std::move(state)), sizes(std::move(whole)) {}

  std::string name;  // in checkpoints; of our own rules as torch::optim has it
  // Empty: a number for each element, divided among the ranks as the elements are. Otherwise a
  // small tensor of this shape that every rank has whole: a number for each row, say.
  std::vector<std::int64_t> sizes;

  std::int64_t numel() const;  // of one that is not divided
};

// A look at whole parameters before any of them is updated, for rules whose step depends on more
// than the element: norms, means of rows. It changes nothing. Each rank measures the slices it has;
// their numbers become one set for each parameter, the same on all ranks.
struct OptimizerPass {
  enum class Combine {
    kLargest,  // numbers of 0 or more
    kSum,      // of numbers whose sum is exact (square_sum.h), or the ranks would round differently
  };
  Combine combine = Combine::kSum;
  std::function<std::size_t(const ParameterInfo& parameter)> count{};  // of the numbers
  // Combines what it finds in the slice with `numbers`, which begin as zeros. Results of earlier
  // passes are in slice.whole->measured. Called by several threads at once, for disjoint slices. Of
  // a slice on a GPU, issues the work: `numbers` are memory that the host sees, too, and that is
  // not looked at before it is done.
  std::function<void(
      const ParameterSlice& slice, const GradientTransform& transform, double* numbers)>
      measure{};
  // May be empty. Makes of a parameter's numbers, measured.back(), what is needed next. The same on
  // all ranks.
  std::function<void(WholeParameter& whole)> then{};
};

// A rule and its settings; immutable and shared by whoever updates a slice of anything.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string name() const = 0;
  virtual double learning_rate() const = 0;
  // Its settings by name, a switch as 0 or 1: what `with` takes.
  virtual std::vector<std::pair<std::string, double>> values() const;
  // Everything that its updates depend on, as a text with all digits: "lr 0.1, momentum 0.9". Ranks
  // compare theirs.
  virtual std::string settings() const;
  // At most kMostOptimizerStates, each with another name.
  virtual std::vector<OptimizerState> states(const ParameterInfo& parameter) const = 0;

  // Whether it updates whole parameters only (Muon). Engines then divide between parameters.
  virtual bool takes_whole_parameters() const { return false; }

  // Whether `update` can be given memory of this device. A user's own rule: only the host's.
  virtual bool works_on(Device device) const { return device.is_host(); }

  // Whether it can update some rows of a parameter and leave the others, with their states, as they
  // are (SparseUpdate::kLazy): every element is for itself. A user's own rule: unless it says so,
  // no.
  virtual bool updates_rows() const { return false; }
  // Whether an element whose gradient is zero, with its states, stays as it is anyway.
  virtual bool leaves_untouched() const { return false; }

  // What happens in a step: all passes of all ranks, then the updates, for which nobody needs
  // anybody else.
  virtual std::vector<OptimizerPass> passes() const { return {}; }
  // Updates the slice in place with this learning rate (a schedule's, or learning_rate()). A slice
  // that says nothing of the whole parameter is one: the passes are then taken here. Thread-safe
  // for disjoint slices.
  virtual void update(const ParameterSlice& slice,
                      const GradientTransform& transform,
                      double learning_rate) const = 0;
  // After the last slice of a parameter was updated: moves the states that are not divided.
  virtual void finish(WholeParameter& whole) const;

  // The rule of each parameter, this one or a part of this one (ParameterGroups). Throws
  // ConfigError where it was told of parameters that are not there.
  virtual std::vector<const Optimizer*> assign(const std::vector<ParameterInfo>& parameters) const;
  // This rule with other values of these settings. Throws ConfigError where it has none of a name,
  // as a user's own rule unless it says otherwise.
  virtual std::unique_ptr<Optimizer> with(const std::map<std::string, double>& changes) const;
  virtual std::unique_ptr<Optimizer> clone() const = 0;
};

// One of the rules below: `Options` says which.
template <class Options>
class OptimizerOf final : public Optimizer {
 public:
  explicit OptimizerOf(const Options& options = {});  // throws ConfigError
  std::string name() const override;
  double learning_rate() const override { return options_.lr; }
  std::vector<std::pair<std::string, double>> values() const override;
  std::set<std::string> switches() const;  // those of its settings that are on or off
  std::vector<OptimizerState> states(const ParameterInfo& parameter) const override;
  bool takes_whole_parameters() const override;
  bool works_on(Device /*device*/) const override { return true; }
  bool updates_rows() const override;
  bool leaves_untouched() const override;
  std::vector<OptimizerPass> passes() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double learning_rate) const override;
  void finish(WholeParameter& whole) const override;
  std::unique_ptr<Optimizer> with(const std::map<std::string, double>& changes) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<OptimizerOf>(*this); }

 private:
  Options options_;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  double l1 = 0;
  bool nesterov = false;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double l1 = 0;
  bool amsgrad = false;  // Reddi et al., "On the Convergence of Adam and Beyond", as in torch
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled
  double l1 = 0;
  bool amsgrad = false;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  double l1 = 0;
};

struct RmspropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  double l1 = 0;
  bool centered = false;
};

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled
  double l1 = 0;
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  double l1 = 0;
};

struct AdafactorOptions {
  double lr = 1e-2;  // of the parameter's own size, and at most 1 / sqrt(step)
  double beta2_decay = -0.8;
  double eps1 = 0;  // under the root; 0: the epsilon of float32 or float64
  double eps2 = 1e-3;
  double clip = 1;          // of the update's root mean square; torch calls it d
  double weight_decay = 0;  // decoupled
};

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;  // decoupled
  double eps = 1e-7;
  bool nesterov = true;
};

// Momentum SGD as torch::optim::SGD computes it. State: the momentum, where it is used.
using Sgd = OptimizerOf<SgdOptions>;
// Kingma and Ba, "Adam", algorithm 1. States: first and second moment; with amsgrad the largest
// second one.
using Adam = OptimizerOf<AdamOptions>;
// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.
using AdamW = OptimizerOf<AdamWOptions>;
// Duchi et al., with torch's learning-rate decay. State: the sum of squares.
using Adagrad = OptimizerOf<AdagradOptions>;
// Hinton's, as torch::optim::RMSprop computes it. States: the mean square; with momentum its
// buffer; centered the mean.
using Rmsprop = OptimizerOf<RmspropOptions>;
// Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2. State: the momentum.
using Lion = OptimizerOf<LionOptions>;
// You et al., "Large Batch Optimization for Deep Learning", algorithm 2. States: both moments. The
// length of the step depends on norms of the whole parameter.
using Lamb = OptimizerOf<LambOptions>;
// Shazeer and Stern, "Adafactor", as torch.optim.Adafactor computes it. States: of a matrix the
// mean squares of its rows and columns, in which it takes next to no memory; of a vector those of
// its elements.
using Adafactor = OptimizerOf<AdafactorOptions>;

// Jordan et al., "Muon", as torch.optim.Muon has it, in float32: the momentum of a matrix, made
// nearly orthogonal by five steps of Newton and Schulz. For matrices only: give other parameters,
// embeddings and the last layer another rule (ParameterGroups). State: the momentum.
using Muon = OptimizerOf<MuonOptions>;

// The rule of this name ("adamw") with these settings; the others keep their defaults. Throws
// ConfigError for a name that there is not.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name,
                                          const std::map<std::string, double>& settings = {});

// The rules that there are, in the order of the documentation.
struct RuleInfo {
  std::string name;
  // Its settings and what they are where a command does not say, also switches (0 or 1).
  std::vector<std::pair<std::string, double>> settings;
  std::set<std::string> switches;

  // Nothing where it has no such setting.
  std::optional<double> usual(const std::string& setting) const;
};
const std::vector<RuleInfo>& optimizer_rules();
const RuleInfo& optimizer_rule(const std::string& name);  // throws ConfigError

}  // namespace trireme
