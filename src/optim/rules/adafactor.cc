// Adafactor (Shazeer and Stern), as torch.optim.Adafactor has it: the second moments of a matrix
// are the product of those of its rows and its columns. Whole parameters are looked at four times
// before the update: for the largest parameter and gradient, the sums of squares of rows and
// columns, the largest element of the direction, and its norm. All sums are exact.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/adafactor.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "optim/directions.h"
#include "optim/element_pass-inl.h"
#include "optim/matrix_lines.h"
#include "optim/matrix_walk.h"
#include "optim/rule-inl.h"

// This file is read once per instruction set; what is the same for all, once.
#ifndef TRIREME_OPTIM_ADAFACTOR_STEP
#define TRIREME_OPTIM_ADAFACTOR_STEP
namespace trireme::detail {
namespace {

struct AdafactorStep {
  double share = 1;  // of the new mean squares
  double eps1 = 0;
};

}  // namespace
}  // namespace trireme::detail
#endif  // TRIREME_OPTIM_ADAFACTOR_STEP

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/adafactor.h"

}  // namespace

// The direction goes to `result`; a vector's mean squares move, or do not.
void adafactor_vector(const AdafactorStep& step,
                      const ParameterSlice& slice,
                      const GradientTransform& transform,
                      bool moves,
                      void* result) {
  if (moves) {
    move_with<AdafactorOfVector, 1>(slice, transform, step, result);
  } else {
    look_with<AdafactorLook, 1>(slice, transform, step, result);
  }
}

// Of a matrix, whose mean squares the slice has in the place of a state.
void adafactor_matrix(const AdafactorStep& step,
                      const ParameterSlice& slice,
                      const GradientTransform& transform,
                      void* result) {
  look_with<AdafactorOfMatrix, 1>(slice, transform, step, result);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {
namespace {

HWY_EXPORT(adafactor_vector);
HWY_EXPORT(adafactor_matrix);

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

// The directions of blocks of a slice.
class Directions {
 public:
  Directions(const AdafactorOptions& options, const ParameterSlice& slice)
      : step_{share_of_new(options, slice.step), eps1_of(options, slice.dtype)} {
    const WholeParameter& whole = *slice.whole;
    if (!is_matrix(whole.info)) {
      return;
    }
    const MatrixWalk shape(whole.info, 0);
    const auto rows = static_cast<std::size_t>(shape.rows());
    const auto columns = static_cast<std::size_t>(shape.columns());
    const std::span<const double> numbers = std::span(whole.measured[kSquares]).subspan(1);
    std::vector<double> means(numbers.begin() + shape.rows() + shape.columns(), numbers.end());
    const double least = slice.dtype == Dtype::kFloat64
                             ? step_.eps1
                             : static_cast<double>(static_cast<float>(step_.eps1));
    for (double& mean : means) {
      const double own =
          slice.dtype == Dtype::kFloat64 ? mean : static_cast<double>(static_cast<float>(mean));
      mean = own < least ? least : own;
    }
    factors_.emplace(whole.info,
                     slice.dtype,
                     slice.device,
                     numbers.first(rows),
                     numbers.subspan(rows, columns),
                     means);
  }

  // `rooms[0]` becomes the block's direction. `moves`: a vector's mean squares, too.
  void operator()(const ParameterSlice& part,
                  const GradientTransform& transform,
                  const std::array<Span, 2>& rooms,
                  bool moves) const {
    if (!factors_) {
      HWY_DYNAMIC_DISPATCH(adafactor_vector)(step_, part, transform, moves, rooms[0].bytes());
      return;
    }
    factors_->spread(part.begin, rooms[1]);
    ParameterSlice with = part;
    with.states[0] = rooms[1].bytes();
    HWY_DYNAMIC_DISPATCH(adafactor_matrix)(step_, with, transform, rooms[0].bytes());
  }

 private:
  AdafactorStep step_;
  std::optional<LineFactors> factors_;  // of a matrix
};

void measure_largest(const ParameterSlice& slice,
                     const GradientTransform& transform,
                     double* numbers) {
  device::Stream& stream = stream_of(slice);
  stream.largest(master_of(slice), {}, &numbers[kParameter]);
  for_blocks<1>(slice, [&](const ParameterSlice& part, const auto& rooms) {
    transformed_gradient(part, transform, rooms[0].bytes());
    stream.largest(rooms[0], {}, &numbers[kGradient]);
  });
}

void measure_squares(const ParameterSlice& slice,
                     const GradientTransform& transform,
                     double* numbers) {
  const WholeParameter& whole = *slice.whole;
  const std::vector<double>& largest = whole.measured[kLargest];
  const std::int64_t numel = whole.info.numel();
  stream_of(slice).squares(master_of(slice),
                           quanta_or_nan(largest[kParameter], numel),
                           {},
                           reinterpret_cast<SquareSum*>(numbers));
  if (!is_matrix(whole.info)) {
    return;
  }
  const SquareQuanta of_gradient = quanta_or_nan(largest[kGradient], numel);
  double* rows = numbers + 2;
  double* columns = rows + 2 * MatrixWalk(whole.info, 0).rows();
  for_blocks<1>(slice, [&](const ParameterSlice& part, const auto& rooms) {
    transformed_gradient(part, transform, rooms[0].bytes());
    add_line_squares(whole.info, part.begin, rooms[0], of_gradient, rows, columns);
  });
}

template <class T>
T moved(T average, T value, double share) {
  return share == 1 ? value : average + static_cast<T>(share) * (value - average);
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

void measure_direction(const AdafactorOptions& options,
                       const ParameterSlice& slice,
                       const GradientTransform& transform,
                       double* numbers) {
  const bool norm = slice.whole->measured.size() == kDirection;
  const SquareQuanta quanta =
      norm ? quanta_or_nan(slice.whole->measured[kLargestDirection][0], slice.whole->info.numel())
           : SquareQuanta{};
  device::Stream& stream = stream_of(slice);
  const Directions directions(options, slice);
  for_blocks<2>(slice, [&](const ParameterSlice& part, const auto& rooms) {
    directions(part, transform, rooms, /*moves=*/false);
    if (norm) {
      stream.squares(rooms[0], quanta, {}, reinterpret_cast<SquareSum*>(numbers));
    } else {
      stream.largest(rooms[0], {}, numbers);
    }
  });
}

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
  const Directions directions(options, slice);
  for_blocks<2>(slice, [&](const ParameterSlice& part, const auto& rooms) {
    directions(part, transform, rooms, /*moves=*/true);
    apply_direction(part, rooms[0].bytes(), 1 - lr * options.weight_decay, shortened);
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
    measure_direction(o, slice, transform, found);
  };
  return {
      {.combine = Combine::kLargest, .count = numbers(2), .measure = measure_largest, .then = {}},
      {.combine = Combine::kSum,
       .count =
           [](const ParameterInfo& parameter) {
             const MatrixWalk shape(parameter, 0);
             return static_cast<std::size_t>(
                 is_matrix(parameter) ? 2 + 2 * (shape.rows() + shape.columns()) : 2);
           },
       .measure = measure_squares,
       .then =
           [o](WholeParameter& whole) {
             whole.dtype == Dtype::kFloat64 ? settle<double>(o, whole) : settle<float>(o, whole);
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
            update(o, slice, transform, lr);
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
#endif  // HWY_ONCE
