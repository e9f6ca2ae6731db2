#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/parameter_slice.h"
#include "trireme/optim/square_sum.h"

// The update rules, on flat memory. Each is one fused pass: parameter, gradient and states are read
// and written once. Values, betas and learning rates are double in the options and rounded once to
// the parameter's precision. L2 `weight_decay` is added to the gradient, except where a rule says
// that it is decoupled; `l1` adds l1 * sign(parameter) to the gradient.

namespace trireme {

namespace detail {
// The shortest text that is this number and no other.
std::string exact_text(double value);
}  // namespace detail

// A rule and its settings; immutable and shared by whoever updates a slice of anything.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string name() const = 0;
  // Buffers of the slice's dtype that the rule keeps for every element; at most
  // ParameterSlice::kMostStates.
  virtual int state_count() const = 0;
  // What checkpoints call them, each by another name; of our own rules as torch::optim does.
  virtual std::vector<std::string> state_names() const;
  virtual double learning_rate() const = 0;
  // Everything that its updates depend on, as a text with all digits: "lr 0.1, momentum 0.9". Ranks
  // compare theirs.
  virtual std::string settings() const;

  // Updates the slice in place with this learning rate (a schedule's, or learning_rate()).
  // Thread-safe for disjoint slices.
  virtual void update(const ParameterSlice& slice,
                      const GradientTransform& transform,
                      double learning_rate) const = 0;

  virtual std::unique_ptr<Optimizer> clone() const = 0;
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
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled
  double l1 = 0;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  double l1 = 0;
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

// Momentum SGD as torch::optim::SGD computes it. State: the momentum, where it is used.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options = {});
  std::string name() const override { return "sgd"; }
  int state_count() const override { return options_.momentum != 0 ? 1 : 0; }
  std::vector<std::string> state_names() const override {
    return state_count() > 0 ? std::vector<std::string>{"momentum_buffer"}
                             : std::vector<std::string>{};
  }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Sgd>(*this); }

 private:
  SgdOptions options_;
};

// Kingma and Ba, "Adam", algorithm 1. States: first and second moment.
class Adam final : public Optimizer {
 public:
  explicit Adam(const AdamOptions& options = {});
  std::string name() const override { return "adam"; }
  int state_count() const override { return 2; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Adam>(*this); }

 private:
  AdamOptions options_;
};

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.
class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options = {});
  std::string name() const override { return "adamw"; }
  int state_count() const override { return 2; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<AdamW>(*this); }

 private:
  AdamWOptions options_;
};

// Duchi et al., with torch's learning-rate decay. State: the sum of squares.
class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const AdagradOptions& options = {});
  std::string name() const override { return "adagrad"; }
  int state_count() const override { return 1; }
  std::vector<std::string> state_names() const override { return {"sum"}; }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Adagrad>(*this); }

 private:
  AdagradOptions options_;
};

// Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2. State: the momentum.
class Lion final : public Optimizer {
 public:
  explicit Lion(const LionOptions& options = {});
  std::string name() const override { return "lion"; }
  int state_count() const override { return 1; }
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Lion>(*this); }

 private:
  LionOptions options_;
};

// You et al., "Large Batch Optimization for Deep Learning", algorithm 2. States: both moments.
//
// The length of the step depends on the norms of the whole parameter. `update` takes a slice that
// is one; where a parameter is spread over slices or ranks, call `measure` on each (first pass),
// add the measures of all of them up in any order, and call `apply` on each (second pass). Either
// way the bits are the same.
class Lamb final : public Optimizer {
 public:
  struct Measure {
    SquareSum parameter;
    SquareSum direction;

    void add(const Measure& other) {
      parameter.add(other.parameter);
      direction.add(other.direction);
    }
    // The norm of the parameter over that of the direction; 1 where one of them is 0.
    double trust_ratio() const;
  };

  explicit Lamb(const LambOptions& options = {});
  std::string name() const override { return "lamb"; }
  int state_count() const override { return 2; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  double learning_rate() const override { return options_.lr; }
  std::string settings() const override;
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override;
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Lamb>(*this); }

  // `largest` is the largest magnitude in the whole parameter of `numel` elements.
  Measure measure(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  double largest,
                  std::int64_t numel) const;
  void apply(const ParameterSlice& slice, double trust_ratio, double lr) const;

 private:
  LambOptions options_;
};

}  // namespace trireme
