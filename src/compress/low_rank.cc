#include "compress/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "trireme/core/concat.h"
#include "trireme/core/random.h"

namespace trireme::detail {
namespace {

// Of a column, in lengths of what it was: less is rounding.
constexpr double kLeastRest = 0x1p-20;

struct LowRank final : Compressor {
  explicit LowRank(int rank)
      : Compressor({.name = concat("powersgd:", rank),
                    .block = 32,
                    .bytes = 32 * sizeof(float),
                    .feedback = true,
                    .rank = rank}) {}
  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey& /*key*/) const override {
    std::memcpy(to.data(), values.data(), values.size_bytes());
    std::ranges::fill(to.subspan(values.size_bytes()), std::byte{0});
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey& /*key*/) const override {
    std::memcpy(values.data(), from.data(), values.size_bytes());
  }
};

// One column of a matrix that lies row by row.
class Column {
 public:
  Column(float* matrix, std::int64_t rows, int columns, int index)
      : first_(matrix + index), rows_(rows), step_(columns) {}

  float& operator[](std::int64_t row) const { return first_[row * step_]; }
  double dot(const Column& other) const {
    double sum = 0;
    for (std::int64_t i = 0; i < rows_; ++i) {
      sum += static_cast<double>((*this)[i]) * static_cast<double>(other[i]);
    }
    return sum;
  }
  double norm() const { return std::sqrt(dot(*this)); }
  void subtract(const Column& other, double times) const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      (*this)[i] = static_cast<float>((*this)[i] - times * other[i]);
    }
  }
  void divide(double by) const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      (*this)[i] = static_cast<float>((*this)[i] / by);
    }
  }
  // By the power of two that makes the largest magnitude 0.5 to 1, exactly. False: nothing but
  // zeros.
  bool scale() const {
    float largest = 0;
    for (std::int64_t i = 0; i < rows_; ++i) {
      largest = std::max(largest, std::abs((*this)[i]));
    }
    if (largest > 0 && std::isfinite(largest)) {
      int exponent = 0;
      std::frexp(largest, &exponent);
      for (std::int64_t i = 0; i < rows_; ++i) {
        (*this)[i] = std::ldexp((*this)[i], -exponent);
      }
    }
    return largest != 0;
  }

 private:
  float* first_;
  std::int64_t rows_;
  std::int64_t step_;
};

}  // namespace

std::shared_ptr<const Compressor> make_low_rank(int rank) {
  return std::make_shared<LowRank>(rank);
}

void orthonormalise(float* p, std::int64_t rows, int rank) {
  for (int k = 0; k < rank; ++k) {
    const Column column(p, rows, rank, k);
    column.scale();
    const double before = column.norm();
    for (int pass = 0; pass < 2; ++pass) {
      for (int j = 0; j < k; ++j) {
        const Column other(p, rows, rank, j);
        column.subtract(other, column.dot(other));
      }
    }
    // What is not a number stays so.
    if (const double norm = column.norm(); norm <= kLeastRest * before) {
      for (std::int64_t i = 0; i < rows; ++i) {
        column[i] = 0;
      }
    } else {
      column.divide(norm);
    }
  }
}

void prepare_factor(float* q, std::int64_t columns, int rank, std::uint64_t key) {
  for (int k = 0; k < rank; ++k) {
    const Column column(q, columns, rank, k);
    if (!column.scale()) {
      RandomStream random(mix(key, k));
      for (std::int64_t i = 0; i < columns; ++i) {
        column[i] = static_cast<float>(2 * random.uniform() - 1);
      }
    }
  }
}

}  // namespace trireme::detail
