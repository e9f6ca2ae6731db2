#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include "parallel/model/parameter_table.h"

// Note [rows with a bound]
// torch::nn::Embedding with max_norm scales the rows that it is going to look up down to that norm,
// in place, in every forward. Here nobody may write then: ranks share the weight, or hold copies of
// which each would change other rows. What LibTorch does in two operators is therefore done apart.
// Its embedding_renorm_ changes nothing; the embedding that follows hands out scaled copies of the
// rows; and the rows that the micro-batches of a step have looked up, on whatever rank, are scaled
// where they are before the update of the step (engine/row_bounds.h). All micro-batches of a step
// see the same weight, so this is what one process would have done that goes through them.

namespace trireme::detail {

// The rows of an engine's bounded weights that a step has looked up.
class BoundedRows {
 public:
  // Of the parameters with Parameter::bound. They outlive this.
  explicit BoundedRows(const std::vector<Parameter>& parameters);
  BoundedRows(const BoundedRows&) = delete;
  BoundedRows& operator=(const BoundedRows&) = delete;
  ~BoundedRows();

  // By parameter, with repetitions.
  const std::map<std::size_t, std::vector<std::int64_t>>& rows() const { return rows_; }
  void forget();

 private:
  friend class Lookup;
  friend bool leaves_out(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

  const std::vector<Parameter>& parameters_;
  std::mutex mutex_;  // lookups may come from any thread
  std::map<std::size_t, std::vector<std::int64_t>> rows_;
};

// --- for the operator watch: what becomes of LibTorch's two operators

// This is embedding_renorm_ of a bounded weight, which is left out: its result is on the stack.
bool leaves_out(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

// One operator, from before it runs. Throws ConfigError where a weight that was to be scaled is
// used by another one than that embedding.
class Lookup {
 public:
  Lookup(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);
  // Scales what it has looked up.
  void finish(torch::jit::Stack& stack) const;

 private:
  BoundedRows* rows_ = nullptr;  // null: any other operator
  std::size_t parameter_ = 0;
  at::Tensor weight_;
  at::Tensor indices_;
};

// Throws ConfigError where embedding_renorm_ was left out and no lookup has followed.
void check_bounds_used();

}  // namespace trireme::detail
