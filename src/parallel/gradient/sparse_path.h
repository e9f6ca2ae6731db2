#pragma once

#include <utility>
#include <vector>

#include "parallel/gradient/gradient_path.h"
#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// Gradients of embeddings, which come as rows and travel as indices and values. The rows of all
// ranks are added in rank order.
class SparsePath final : public GradientPath {
 public:
  SparsePath(const PartContext& context, GradientSums& sums);

  void begin_round(const Round&) override {}
  bool add(std::size_t parameter, const at::Tensor& gradient) override;
  void end_round(bool given_up) override;
  void end_step(StepOutcome outcome) override;

 private:
  // This rank's rows of one parameter, on their way to being summed.
  struct Rows {
    std::size_t unit = 0;
    std::int64_t width = 0;
    at::Tensor indices{};
    at::Tensor values{};
  };
  Rows rows_of(std::size_t unit) const;
  void add_up(const Rows& rows);

  PartContext context_;
  GradientSums& sums_;
  std::vector<std::pair<std::size_t, at::Tensor>> gradients_;  // since the ranks last communicated
  std::vector<char> begun_;  // by unit: this step's sums have been set to zero
};

}  // namespace trireme::detail
