#include "parity/formula_reference.h"

#include <algorithm>
#include <cmath>

namespace trireme::testing {

using torch::Tensor;

FormulaRule sgd_formula(double lr, double momentum, double weight_decay) {
  return [=](Tensor& p, const Tensor& gradient, std::array<Tensor, 2>& states, double t) {
    const Tensor g = weight_decay == 0 ? gradient : gradient.add(p.mul(weight_decay));
    states[0] = t == 1 ? g.clone() : states[0].mul(momentum).add(g);
    p = p.sub(states[0].mul(lr));
  };
}

FormulaRule adamw_formula(double lr, double weight_decay) {
  return [=](Tensor& p, const Tensor& g, std::array<Tensor, 2>& states, double t) {
    states[0] = 0.9 * states[0] + 0.1 * g;
    states[1] = 0.999 * states[1] + 0.001 * g * g;
    const Tensor first = states[0] / (1 - std::pow(0.9, t));
    const Tensor second = states[1] / (1 - std::pow(0.999, t));
    p = p - lr * weight_decay * p - lr * first / (second.sqrt() + 1e-8);
  };
}

FormulaRule lion_formula(double lr, double weight_decay) {
  return [=](Tensor& p, const Tensor& g, std::array<Tensor, 2>& states, double) {
    const Tensor direction = states[0].mul(0.9).add(g.mul(1 - 0.9)).sign();
    states[0] = states[0].mul(0.99).add(g.mul(1 - 0.99));
    p = p.mul(1 - lr * weight_decay).sub(direction.mul(lr));
  };
}

FormulaRule lamb_formula(double lr, double weight_decay) {
  return [=](Tensor& p, const Tensor& g, std::array<Tensor, 2>& states, double t) {
    states[0] = 0.9 * states[0] + 0.1 * g;
    states[1] = 0.999 * states[1] + 0.001 * g * g;
    const Tensor first = states[0] / (1 - std::pow(0.9, t));
    const Tensor second = states[1] / (1 - std::pow(0.999, t));
    const Tensor direction = first / (second.sqrt() + 1e-6) + weight_decay * p;
    const double length = p.square().sum().sqrt().item<double>();
    const double step = direction.square().sum().sqrt().item<double>();
    p = p - lr * (length > 0 && step > 0 ? length / step : 1) * direction;
  };
}

namespace {

std::vector<Tensor> parameters_of(const TestModel& model) {
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : model.parameters()) {
    if (std::none_of(parameters.begin(), parameters.end(), [&](const Tensor& other) {
          return other.is_same(parameter);
        })) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

void append(std::vector<double>* values, const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(torch::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  values->insert(values->end(), data, data + flat.numel());
}

}  // namespace

FormulaTraining::FormulaTraining(const Case& item, const Formula& formula)
    : formula_(formula),
      model_(item.model()),
      parameters_(parameters_of(*model_)),
      updates_(parameters_.size(), 0),
      scale_(formula.scale ? formula.scale->scale : 1) {
  for (Tensor& parameter : parameters_) {
    masters_.push_back(parameter.detach().to(formula_.precise).clone());
    states_.push_back({torch::zeros_like(masters_.back()), torch::zeros_like(masters_.back())});
    parameter.set_data(parameter.detach().to(formula_.type));
  }
}

void FormulaTraining::follow(const TestModel& model) {
  const std::vector<Tensor> others = parameters_of(model);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p].set_data(others.at(p).detach().clone());
  }
}

bool FormulaTraining::add_up(std::vector<Tensor>* sums) {
  bool finite = true;
  for (std::int64_t m = 0; m < kMicroBatches; ++m) {
    model_->zero_grad();
    const Tensor loss = model_->loss(steps_, m);
    (formula_.scale ? loss * scale_ : loss).backward();
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const Tensor gradient = parameters_[p].grad();
      if (gradient.defined()) {
        finite = finite && gradient.isfinite().all().item<bool>();
        const Tensor term = gradient.to(formula_.precise);
        Tensor& sum = (*sums)[p];
        sum = sum.defined() ? sum.add(term) : term.clone();
      }
    }
  }
  model_->zero_grad();
  return finite;
}

void FormulaTraining::update(std::vector<Tensor>* sums) {
  double squares = 0;
  for (Tensor& sum : *sums) {
    if (sum.defined()) {
      // By a tensor, which is divided by, not multiplied with its reciprocal.
      sum = sum.div(torch::full_like(sum, static_cast<double>(kMicroBatches)));
      sum = sum.mul(1 / scale_);
      squares += sum.to(torch::kDouble).square().sum().item<double>();
    }
  }
  const double factor =
      formula_.clip_norm > 0 ? std::min(1.0, formula_.clip_norm / (std::sqrt(squares) + 1e-6)) : 1;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if ((*sums)[p].defined()) {
      const Tensor gradient = factor == 1 ? (*sums)[p] : (*sums)[p].mul(factor);
      formula_.rule(masters_[p], gradient, states_[p], static_cast<double>(++updates_[p]));
      parameters_[p].set_data(masters_[p].to(formula_.type));
    }
  }
}

void FormulaTraining::step() {
  std::vector<Tensor> sums(parameters_.size());
  const bool finite = add_up(&sums);
  ++steps_;
  const torch::NoGradGuard no_grad;
  if (!finite) {
    scale_ /= 2;
    good_ = 0;
    ++skipped_;
    return;
  }
  update(&sums);
  if (formula_.scale && ++good_ == formula_.scale->growth_interval) {
    grown_ += scale_ < formula_.scale->most ? 1 : 0;
    scale_ = std::min(2 * scale_, formula_.scale->most);
    good_ = 0;
  }
}

Trained FormulaTraining::result() const {
  Trained result;
  result.scale = scale_;
  result.skipped = skipped_;
  result.grown = grown_;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    append(&result.masters, parameters_[p].requires_grad() ? masters_[p] : parameters_[p]);
    append(&result.parameters, parameters_[p]);
  }
  return result;
}

Trained train_by_formula(const Case& item, const Formula& formula) {
  FormulaTraining training(item, formula);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    training.step();
  }
  return training.result();
}

Result Trained::to_bytes() const {
  std::vector<double> all = {scale, static_cast<double>(skipped)};
  all.insert(all.end(), masters.begin(), masters.end());
  all.insert(all.end(), parameters.begin(), parameters.end());
  const auto* bytes = reinterpret_cast<const char*>(all.data());
  return {bytes, bytes + all.size() * sizeof(double)};
}

}  // namespace trireme::testing
