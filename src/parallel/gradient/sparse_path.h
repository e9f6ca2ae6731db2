#pragma once

#include <utility>
#include <vector>

#include "parallel/gradient/gradient_path.h"
#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// Gradients of embeddings, which come as rows and travel as indices and values, each row to its
// owner. Those of all ranks are added in rank order.
class SparsePath final : public GradientPath {
 public:
  SparsePath(const PartContext& context, GradientSums& sums);

  void begin_round(const Round&) override {}
  bool add(std::size_t parameter, const at::Tensor& gradient) override;
  void end_round(bool given_up) override;
  void finish() override;
  void end_step(StepOutcome outcome) override;

 private:
  // This rank's rows of one parameter, on their way to being summed.
  struct Rows {
    std::size_t unit = 0;
    std::int64_t width = 0;
    at::Tensor indices{};
    at::Tensor values{};
    Counts to{};    // how many go to each owner
    Counts from{};  // how many come from each rank
  };
  Dtype dtype_of(std::size_t unit) const;  // of what travels
  Rows rows_of(std::size_t unit) const;
  void deal(Rows& rows) const;
  void add_up(const Rows& rows);
  void count(const Rows& rows) const;

  PartContext context_;
  GradientSums& sums_;
  std::vector<std::size_t> units_;                             // those that are sparse
  std::vector<std::pair<std::size_t, at::Tensor>> gradients_;  // since the ranks last communicated
};

}  // namespace trireme::detail
