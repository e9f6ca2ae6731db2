#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "parallel/model/parameter_table.h"
#include "parallel/model/rounded_unit.h"
#include "trireme/parallel/options.h"
#include "trireme/shard/flat_layout.h"

namespace trireme::detail {

// Parameters that live and move together: one flat buffer of one dtype, of which each owner has a
// range (Ownership). Frozen parameters, and those with sparse gradients, have units of their own.
struct Unit {
  std::string name;  // of its first parameter
  Dtype dtype = Dtype::kFloat32;
  bool trainable = true;
  bool sparse = false;
  std::vector<std::size_t> parameters;  // in the table, in the order of the layout
  FlatLayout layout;
  std::shared_ptr<const RoundedUnit> rounding{};  // null: its parameters are what they are

  std::size_t bytes() const {
    return static_cast<std::size_t>(layout.total_numel()) * dtype_bytes(dtype);
  }
  // Sums, masters and states: full precision.
  Dtype sum_dtype() const { return dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32; }
  bool narrow() const { return dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16; }
  bool has_masters() const { return narrow() || rounding != nullptr; }
  // Those of a sparse one, which has a single parameter, are rows.
  bool has_dense_sums() const { return trainable && !sparse; }
};

// Where a parameter is.
struct Place {
  std::size_t unit = 0;
  std::size_t index = 0;  // in Unit::parameters
};

std::vector<Unit> plan_units(torch::nn::Module& model,
                             const std::vector<Parameter>& parameters,
                             const EngineOptions& options);

// By parameter.
std::vector<Place> places_of(const std::vector<Unit>& units, std::size_t parameter_count);

}  // namespace trireme::detail
