#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/core/span.h"
#include "trireme/device/square_sum.h"
#include "trireme/optim/parameter_slice.h"

// Rows and columns of a parameter's matrices (optim/matrix_walk.h says which they are), on
// whichever device the elements are.

namespace trireme::detail {

// Adds the exact sums of squares of the rows and of the columns to `rows` and `columns`, two
// numbers for each line, which on another device are memory that both see. `data` is elements of
// the parameter from `begin` on.
void add_line_squares(const ParameterInfo& parameter,
                      std::int64_t begin,
                      const ConstSpan& data,
                      const SquareQuanta& quanta,
                      double* rows,
                      double* columns);

// For every element rows[its row] * columns[its column] / matrices[its matrix], in the elements'
// own precision.
class LineFactors {
 public:
  LineFactors(const ParameterInfo& parameter,
              Dtype dtype,
              Device device,
              std::span<const double> rows,
              std::span<const double> columns,
              std::span<const double> matrices);

  // `to` is elements from `begin` on.
  void spread(std::int64_t begin, const Span& to) const;

 private:
  const ParameterInfo& parameter_;
  std::array<Span, 3> factors_;  // of rows, columns and matrices, where the elements are
};

}  // namespace trireme::detail
