#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/optim/parameter_slice.h"

namespace trireme::detail {

// Walks over the elements of a parameter in the order of memory and says of each in which row,
// column and matrix it is. A parameter of more than two dimensions is a list of matrices, of which
// rows and columns are numbered through; one of less has one row.
class MatrixWalk {
 public:
  struct Dimension {
    std::int64_t size;
    std::int64_t stride;
    std::int64_t row = 0;     // that a step along it adds to the row's number
    std::int64_t column = 0;  // and to the column's
    std::int64_t at = 0;
  };

  MatrixWalk(const ParameterInfo& parameter, std::int64_t begin) {
    const std::vector<std::int64_t>& sizes = parameter.sizes;
    const std::size_t dimensions = sizes.size();
    std::int64_t stride = 1;
    for (std::size_t d = dimensions; d-- > 0;) {
      Dimension dimension{sizes[d], parameter.strides.empty() ? stride : parameter.strides[d]};
      stride *= sizes[d];
      // The last dimension says which column, the one before which row, all others which matrix.
      if (d + 1 == dimensions) {
        dimension.column = 1;
        columns_ = sizes[d];
      } else if (d + 2 == dimensions) {
        dimension.row = 1;
        height_ = rows_ = sizes[d];
      } else {
        dimension.row = rows_;
        dimension.column = columns_;
        rows_ *= sizes[d];
        columns_ *= sizes[d];
        matrices_ *= sizes[d];
      }
      dimensions_.push_back(dimension);
    }
    // The fastest first.
    std::sort(dimensions_.begin(), dimensions_.end(), [](const auto& a, const auto& b) {
      return a.stride != b.stride ? a.stride < b.stride : a.size < b.size;
    });
    for (std::size_t i = dimensions_.size(); i-- > 0 && begin > 0;) {
      Dimension& dimension = dimensions_[i];
      dimension.at = dimension.size > 1 ? begin / dimension.stride : 0;
      begin -= dimension.at * dimension.stride;
      row_ += dimension.at * dimension.row;
      column_ += dimension.at * dimension.column;
    }
  }

  void next() {
    for (Dimension& dimension : dimensions_) {
      row_ += dimension.row;
      column_ += dimension.column;
      if (++dimension.at < dimension.size) {
        return;
      }
      row_ -= dimension.at * dimension.row;
      column_ -= dimension.at * dimension.column;
      dimension.at = 0;
    }
  }

  std::int64_t row() const { return row_; }
  std::int64_t column() const { return column_; }
  std::int64_t matrix() const { return row_ / height_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t matrices() const { return matrices_; }

  // The dimensions along which there is a step, in the order of memory.
  std::vector<Dimension> slowest_first() const {
    std::vector<Dimension> steps;
    for (std::size_t i = dimensions_.size(); i-- > 0;) {
      if (dimensions_[i].size > 1) {
        steps.push_back(dimensions_[i]);
      }
    }
    return steps;
  }

 private:
  std::vector<Dimension> dimensions_;
  std::int64_t rows_ = 1;
  std::int64_t columns_ = 1;
  std::int64_t matrices_ = 1;
  std::int64_t height_ = 1;
  std::int64_t row_ = 0;
  std::int64_t column_ = 0;
};

}  // namespace trireme::detail
