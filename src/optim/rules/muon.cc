// Muon: the momentum of a matrix, made nearly orthogonal. All of a matrix is needed for every
// element, so it is updated whole, by its one owner.

#include <algorithm>
#include <cmath>

#include "device/stream.h"
#include "optim/directions.h"
#include "optim/rule-inl.h"
#include "trireme/core/error.h"

namespace trireme {
namespace detail {
namespace {

template <class T>
std::vector<T> transposed(const T* matrix, std::int64_t rows, std::int64_t columns) {
  std::vector<T> result(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      result[static_cast<std::size_t>(j * rows + i)] = matrix[i * columns + j];
    }
  }
  return result;
}

// Newton and Schulz's steps with the coefficients of Muon's authors, which take singular values
// from (0, 1] to about 1. `matrix` has no more rows than columns and is divided by its norm.
template <class T>
void orthogonalise(std::vector<T>& matrix, std::int64_t rows, std::int64_t columns) {
  constexpr double kA = 3.4445;
  constexpr double kB = -4.7750;
  constexpr double kC = 2.0315;
  constexpr int kSteps = 5;
  std::vector<T> gram(static_cast<std::size_t>(rows * rows));
  std::vector<T> mixed(gram.size());
  std::vector<T> next(matrix.size());
  device::Product product{sizeof(T) == sizeof(double) ? Dtype::kFloat64 : Dtype::kFloat32};
  product.rows = rows;
  for (int step = 0; step < kSteps; ++step) {
    product.alpha = 1;
    product.beta = 0;
    product.columns = rows;
    product.depth = columns;
    product.a = product.b = matrix.data();
    product.b_transposed = true;
    product.c = gram.data();
    device::host().multiply(product);  // gram = X X^T
    mixed = gram;
    product.alpha = kC;
    product.beta = kB;
    product.depth = rows;
    product.a = product.b = gram.data();
    product.b_transposed = false;
    product.c = mixed.data();
    device::host().multiply(product);  // mixed = b gram + c gram gram
    next = matrix;
    product.alpha = 1;
    product.beta = kA;
    product.columns = columns;
    product.a = mixed.data();
    product.b = matrix.data();
    product.c = next.data();
    device::host().multiply(product);  // X = a X + mixed X
    matrix.swap(next);
  }
}

template <class T>
void update_muon(const MuonOptions& options,
                 const ParameterSlice& slice,
                 const GradientTransform& transform,
                 double lr) {
  const WholeParameter& whole = *slice.whole;
  std::vector<T> direction(static_cast<std::size_t>(slice.numel));
  transformed_gradient(slice, transform, direction.data());
  auto* momentum = static_cast<T*>(slice.states[0]);
  const auto taken = static_cast<T>(1 - options.momentum);
  const auto kept = static_cast<T>(options.momentum);
  double squares = 0;
  for (std::size_t i = 0; i < direction.size(); ++i) {
    momentum[i] = kept * momentum[i] + taken * direction[i];
    direction[i] = options.nesterov ? taken * direction[i] + kept * momentum[i] : momentum[i];
    squares += static_cast<double>(direction[i]) * static_cast<double>(direction[i]);
  }
  const auto norm = static_cast<T>(std::max(std::sqrt(squares), options.eps));
  for (T& element : direction) {
    element /= norm;
  }
  // As it is in memory, which may be the transposed matrix: that has the transposed result.
  const std::vector<std::int64_t>& sizes = whole.info.sizes;
  const bool columns_first =
      !whole.info.strides.empty() && sizes[1] > 1 && whole.info.strides[1] != 1;
  const std::int64_t rows = sizes[columns_first ? 1 : 0];
  const std::int64_t columns = sizes[columns_first ? 0 : 1];
  if (rows > columns) {
    std::vector<T> wide = transposed(direction.data(), rows, columns);
    orthogonalise(wide, columns, rows);
    direction = transposed(wide.data(), columns, rows);
  } else {
    orthogonalise(direction, rows, columns);
  }
  const double shape =
      std::sqrt(std::max(1.0, static_cast<double>(sizes[0]) / static_cast<double>(sizes[1])));
  apply_direction(slice, direction.data(), 1 - lr * options.weight_decay, lr * shape);
}

}  // namespace

template <>
const Definition<MuonOptions>& definition_of<MuonOptions>() {
  using O = MuonOptions;
  static const Definition<O> definition{
      .name = "muon",
      .fields = {{"lr", &O::lr},
                 {"momentum", &O::momentum, Bound::kBeta},
                 {"weight_decay", &O::weight_decay},
                 {"eps", &O::eps, Bound::kPositive},
                 {"nesterov", &O::nesterov}},
      .states =
          [](const O&, const ParameterInfo& parameter) {
            TRIREME_CHECK(parameter.sizes.size() == 2,
                          "muon is for matrices, but parameter {} has {}{}: give it another rule "
                          "(ParameterGroups)",
                          {parameter.name,
                           parameter.sizes.size(),
                           parameter.sizes.size() == 1 ? " dimension" : " dimensions"});
            return std::vector<OptimizerState>{"momentum_buffer"};
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            TRIREME_CHECK(slice.whole != nullptr && slice.numel == slice.whole->info.numel(),
                          "muon: expected a whole matrix, found {} elements of one",
                          {slice.numel});
            slice.dtype == Dtype::kFloat64 ? update_muon<double>(o, slice, transform, lr)
                                           : update_muon<float>(o, slice, transform, lr);
          },
      .takes_whole_parameters = true};
  return definition;
}

}  // namespace detail

template class OptimizerOf<MuonOptions>;

}  // namespace trireme
