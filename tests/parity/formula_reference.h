#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "parity/case.h"

// Training as the papers have it, in plain LibTorch operations: whole tensors, one process,
// masters, sums and states in one type that can be double. Nothing of ours is in it but the models.

namespace trireme::testing {

// An update of a whole parameter: its value, its averaged gradient, its states (zero at first), and
// how many updates it has had with this one.
using FormulaRule = std::function<void(
    torch::Tensor& p, const torch::Tensor& g, std::array<torch::Tensor, 2>& states, double t)>;

FormulaRule sgd_formula(double lr, double momentum, double weight_decay);
FormulaRule adamw_formula(double lr, double weight_decay);
FormulaRule lion_formula(double lr, double weight_decay);
FormulaRule lamb_formula(double lr, double weight_decay);

// Micikevicius et al., "Mixed Precision Training", with PyTorch's schedule of the scale.
struct FormulaScale {
  double scale = 1;
  std::int64_t growth_interval = 1 << 30;
  double most = 0x1p40;
};

struct Formula {
  FormulaRule rule;
  at::ScalarType type = at::kFloat;      // of the parameters in forward and backward
  at::ScalarType precise = at::kDouble;  // of masters, sums and states
  std::optional<FormulaScale> scale{};   // none: the loss is not scaled
  double clip_norm = 0;
};

struct Trained {
  std::vector<double> masters;     // flat, in the model's order; of frozen ones the parameters
  std::vector<double> parameters;  // what forward would use next; the same in half precision
  double scale = 1;
  std::int64_t skipped = 0;
  std::int64_t grown = 0;  // times that the scale was made larger; only the formula says

  Result to_bytes() const;
};

class FormulaTraining {
 public:
  FormulaTraining(const Case& item, const Formula& formula);

  // Forward and backward of the next step take the parameters of this model, whoever trains it;
  // masters and states stay. So rounding does not grow: where two trainings round one 16-bit
  // parameter to different neighbours, all their gradients differ from then on, and an update that
  // divides by the size of the gradients makes a whole step even of noise (the bias of attention's
  // keys has no other gradient).
  void follow(const TestModel& model);

  void step();
  Trained result() const;

 private:
  // Whether all gradients of the step are finite; their sums.
  bool add_up(std::vector<torch::Tensor>* sums);
  void update(std::vector<torch::Tensor>* sums);

  Formula formula_;
  std::shared_ptr<TestModel> model_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> masters_;
  std::vector<std::array<torch::Tensor, 2>> states_;
  std::vector<std::int64_t> updates_;
  std::int64_t steps_ = 0;
  double scale_ = 1;
  std::int64_t good_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t grown_ = 0;
};

// All steps of a case.
Trained train_by_formula(const Case& item, const Formula& formula);

}  // namespace trireme::testing
