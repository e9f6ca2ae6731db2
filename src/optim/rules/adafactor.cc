// Adafactor (Shazeer and Stern), as torch.optim.Adafactor has it: the second moments of a matrix
// are the product of those of its rows and its columns. Whole parameters are looked at four times
// before the update: for the largest parameter and gradient, the sums of squares of rows and
// columns, the largest element of the direction, and its norm. All sums are exact.

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/directions.h"
#include "optim/matrix_walk.h"
#include "optim/rule-inl.h"
#include "trireme/optim/square_sum.h"

namespace trireme {
namespace detail {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements that stay in the nearest cache

// What the passes leave in WholeParameter::measured.
enum Pass : std::size_t { kLargest, kSquares, kLargestDirection, kDirection };
// Of kLargest:
enum : std::size_t { kParameter, kGradient };
// kSquares begins with those of the parameter; then, twice as many before `settle`, those of rows
// and columns, and the means of a matrix's rows.

bool is_matrix(const ParameterInfo& parameter) {
  return parameter.sizes.size() > 1;
}

double share_of_new(const AdafactorOptions& options, std::int64_t step) {
  return std::pow(static_cast<double>(step), options.beta2_decay);
}

double eps1_of(const AdafactorOptions& options, Dtype dtype) {
  return options.eps1 > 0           ? options.eps1
         : dtype == Dtype::kFloat64 ? std::numeric_limits<double>::epsilon()
                                    : static_cast<double>(std::numeric_limits<float>::epsilon());
}

template <class T>
T moved(T average, T value, double share) {
  return share == 1 ? value : average + static_cast<T>(share) * (value - average);
}

double magnitude(double value) {
  return std::isnan(value) ? HUGE_VAL : std::abs(value);
}

// Elements that are not finite make every sum NaN.
SquareQuanta quanta_of(double largest, std::int64_t count) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return std::isfinite(largest) ? SquareQuanta::of(largest, count) : SquareQuanta{nan, nan};
}

void add_square(double value, const SquareQuanta& quanta, double* coarse_and_fine) {
  const double square = value * value;
  const double multiple = square + quanta.coarse - quanta.coarse;
  coarse_and_fine[0] += multiple;
  coarse_and_fine[1] += square - multiple + quanta.fine - quanta.fine;
}

// Calls visit(part, gradient) for blocks of a slice with their gradients, which may be written to.
template <class T, class Visit>
void for_blocks(const ParameterSlice& slice, const GradientTransform& transform, Visit visit) {
  alignas(64) T gradient[kBlock];
  for (std::int64_t first = 0; first < slice.numel; first += kBlock) {
    const ParameterSlice part = slice.part(first, std::min(kBlock, slice.numel - first));
    transformed_gradient(part, transform, gradient);
    visit(part, gradient);
  }
}

// Makes a block's gradients its direction. `store`: a vector's mean squares move, too.
template <class T>
void to_direction(const AdafactorOptions& options,
                  const ParameterSlice& part,
                  T* gradient,
                  bool store) {
  const WholeParameter& whole = *part.whole;
  const auto eps1 = static_cast<T>(eps1_of(options, part.dtype));
  const T least = eps1 * eps1;
  if (!is_matrix(whole.info)) {
    auto* variance = static_cast<T*>(part.states[0]);
    const double share = share_of_new(options, part.step);
    for (std::int64_t i = 0; i < part.numel; ++i) {
      const T moving = moved(variance[i], gradient[i] * gradient[i], share);
      if (store) {
        variance[i] = moving;
      }
      gradient[i] /= std::sqrt(moving < least ? least : moving);
    }
    return;
  }
  MatrixWalk walk(whole.info, part.begin);
  const double* rows = whole.measured[kSquares].data() + 1;
  const double* columns = rows + walk.rows();
  const double* means = columns + walk.columns();
  for (std::int64_t i = 0; i < part.numel; ++i, walk.next()) {
    const auto mean = static_cast<T>(means[walk.matrix()]);
    const T estimate = static_cast<T>(rows[walk.row()]) * static_cast<T>(columns[walk.column()]) /
                       (mean < eps1 ? eps1 : mean);
    gradient[i] /= std::sqrt(estimate < least ? least : estimate);
  }
}

template <class T>
void measure_largest(const ParameterSlice& slice,
                     const GradientTransform& transform,
                     double* numbers) {
  numbers[kParameter] =
      std::max(numbers[kParameter], largest_magnitude({slice.master, slice.numel, slice.dtype}));
  for_blocks<T>(slice, transform, [&](const ParameterSlice& part, const T* gradient) {
    numbers[kGradient] =
        std::max(numbers[kGradient], largest_magnitude({gradient, part.numel, part.dtype}));
  });
}

template <class T>
void measure_squares(const ParameterSlice& slice,
                     const GradientTransform& transform,
                     double* numbers) {
  const WholeParameter& whole = *slice.whole;
  const std::vector<double>& largest = whole.measured[kLargest];
  const std::int64_t numel = whole.info.numel();
  const SquareQuanta of_parameter = quanta_of(largest[kParameter], numel);
  for (std::int64_t i = 0; i < slice.numel; ++i) {
    add_square(static_cast<const T*>(slice.master)[i], of_parameter, numbers);
  }
  if (!is_matrix(whole.info)) {
    return;
  }
  const SquareQuanta of_gradient = quanta_of(largest[kGradient], numel);
  MatrixWalk walk(whole.info, slice.begin);
  double* rows = numbers + 2;
  double* columns = rows + 2 * walk.rows();
  for_blocks<T>(slice, transform, [&](const ParameterSlice& part, const T* gradient) {
    for (std::int64_t i = 0; i < part.numel; ++i, walk.next()) {
      add_square(gradient[i], of_gradient, rows + 2 * walk.row());
      add_square(gradient[i], of_gradient, columns + 2 * walk.column());
    }
  });
}

// From sums of squares to mean squares that have moved.
template <class T>
void settle(const AdafactorOptions& options, WholeParameter& whole) {
  std::vector<double>& numbers = whole.measured[kSquares];
  const std::vector<double> sums = std::move(numbers);
  const auto numel = static_cast<double>(whole.info.numel());
  numbers = {std::sqrt((sums[0] + sums[1]) / numel)};
  if (!is_matrix(whole.info)) {
    return;
  }
  const MatrixWalk shape(whole.info, 0);
  const double share = share_of_new(options, whole.step);
  const auto move = [&](const double* from, std::int64_t count, const void* state) {
    const double elements = numel / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto mean = static_cast<T>((from[2 * i] + from[2 * i + 1]) / elements);
      numbers.push_back(moved(static_cast<const T*>(state)[i], mean, share));
    }
  };
  move(sums.data() + 2, shape.rows(), whole.states[0]);
  move(sums.data() + 2 + 2 * shape.rows(), shape.columns(), whole.states[1]);
  const std::int64_t height = shape.rows() / std::max<std::int64_t>(1, shape.matrices());
  for (std::int64_t m = 0; m < shape.matrices(); ++m) {
    double sum = 0;
    for (std::int64_t row = m * height; row < (m + 1) * height; ++row) {
      sum += numbers[static_cast<std::size_t>(1 + row)];
    }
    numbers.push_back(sum / static_cast<double>(height));
  }
}

template <class T>
void measure_direction(const AdafactorOptions& options,
                       const ParameterSlice& slice,
                       const GradientTransform& transform,
                       double* numbers) {
  const bool norm = slice.whole->measured.size() == kDirection;
  const SquareQuanta quanta =
      norm ? quanta_of(slice.whole->measured[kLargestDirection][0], slice.whole->info.numel())
           : SquareQuanta{};
  for_blocks<T>(slice, transform, [&](const ParameterSlice& part, T* gradient) {
    to_direction(options, part, gradient, /*store=*/false);
    for (std::int64_t i = 0; i < part.numel; ++i) {
      if (norm) {
        add_square(gradient[i], quanta, numbers);
      } else {
        numbers[0] = std::max(numbers[0], magnitude(gradient[i]));
      }
    }
  });
}

template <class T>
void update(const AdafactorOptions& options,
            const ParameterSlice& slice,
            const GradientTransform& transform,
            double lr) {
  const auto& measured = slice.whole->measured;
  const auto numel = static_cast<double>(slice.whole->info.numel());
  const double rate = std::max(options.eps2, measured[kSquares][0]) *
                      std::min(lr, 1 / std::sqrt(static_cast<double>(slice.step)));
  const double length = std::sqrt((measured[kDirection][0] + measured[kDirection][1]) / numel);
  const double shortened = rate / std::max(1.0, length / options.clip);
  for_blocks<T>(slice, transform, [&](const ParameterSlice& part, T* gradient) {
    to_direction(options, part, gradient, /*store=*/true);
    apply_direction(part, gradient, 1 - lr * options.weight_decay, shortened);
  });
}

template <class T>
void keep(WholeParameter& whole) {
  if (is_matrix(whole.info)) {
    const MatrixWalk shape(whole.info, 0);
    const double* rows = whole.measured[kSquares].data() + 1;
    std::transform(rows, rows + shape.rows(), static_cast<T*>(whole.states[0]), [](double value) {
      return static_cast<T>(value);
    });
    const double* columns = rows + shape.rows();
    std::transform(
        columns, columns + shape.columns(), static_cast<T*>(whole.states[1]), [](double value) {
          return static_cast<T>(value);
        });
  }
}

std::vector<OptimizerPass> adafactor_passes(const AdafactorOptions& o) {
  using Combine = OptimizerPass::Combine;
  const auto numbers = [](std::size_t count) {
    return [count](const ParameterInfo&) { return count; };
  };
  const auto direction = [o](const auto& slice, const auto& transform, double* found) {
    slice.dtype == Dtype::kFloat64 ? measure_direction<double>(o, slice, transform, found)
                                   : measure_direction<float>(o, slice, transform, found);
  };
  return {{.combine = Combine::kLargest,
           .count = numbers(2),
           .measure =
               [](const auto& slice, const auto& transform, double* found) {
                 slice.dtype == Dtype::kFloat64 ? measure_largest<double>(slice, transform, found)
                                                : measure_largest<float>(slice, transform, found);
               },
           .then = {}},
          {.combine = Combine::kSum,
           .count =
               [](const ParameterInfo& parameter) {
                 const MatrixWalk shape(parameter, 0);
                 return static_cast<std::size_t>(
                     is_matrix(parameter) ? 2 + 2 * (shape.rows() + shape.columns()) : 2);
               },
           .measure =
               [](const auto& slice, const auto& transform, double* found) {
                 slice.dtype == Dtype::kFloat64 ? measure_squares<double>(slice, transform, found)
                                                : measure_squares<float>(slice, transform, found);
               },
           .then =
               [o](WholeParameter& whole) {
                 whole.dtype == Dtype::kFloat64 ? settle<double>(o, whole)
                                                : settle<float>(o, whole);
               }},
          {.combine = Combine::kLargest, .count = numbers(1), .measure = direction, .then = {}},
          {.combine = Combine::kSum, .count = numbers(2), .measure = direction, .then = {}}};
}

}  // namespace

template <>
const Definition<AdafactorOptions>& definition_of<AdafactorOptions>() {
  using O = AdafactorOptions;
  static const Definition<O> definition{
      .name = "adafactor",
      .fields = {{"lr", &O::lr},
                 {"beta2_decay", &O::beta2_decay, Bound::kNotPositive},
                 {"eps1", &O::eps1},
                 {"eps2", &O::eps2},
                 {"clip", &O::clip, Bound::kPositive},
                 {"weight_decay", &O::weight_decay}},
      .states =
          [](const O&, const ParameterInfo& parameter) {
            if (!is_matrix(parameter)) {
              return std::vector<OptimizerState>{"variance"};
            }
            const MatrixWalk shape(parameter, 0);
            return std::vector<OptimizerState>{{"row_var", {shape.rows()}},
                                               {"col_var", {shape.columns()}}};
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            slice.dtype == Dtype::kFloat64 ? update<double>(o, slice, transform, lr)
                                           : update<float>(o, slice, transform, lr);
          },
      .passes = adafactor_passes,
      .finish =
          [](const O&, WholeParameter& whole) {
            whole.dtype == Dtype::kFloat64 ? keep<double>(whole) : keep<float>(whole);
          }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<AdafactorOptions>;

}  // namespace trireme
