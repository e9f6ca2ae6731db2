// Muon: the momentum of a matrix, made nearly orthogonal. All of a matrix is needed for every
// element, so it is updated whole, by its one owner.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/muon.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "device/buffer.h"
#include "optim/directions.h"
#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"
#include "trireme/core/error.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/muon.h"

}  // namespace

void muon_momentum(const MuonOptions& options,
                   const ParameterSlice& slice,
                   const GradientTransform& transform,
                   void* result) {
  move_with<MuonMomentum, 1>(slice, transform, PlainStep<MuonOptions>{options, 0}, result);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {
namespace {

HWY_EXPORT(muon_momentum);

// An exact sum, on the device and here alike.
double norm_of(device::Stream& stream, const Span& matrix) {
  struct Results {
    double largest;
    SquareSum sum;
  };
  const device::Buffer memory = device::Buffer::visible_to(matrix.device(), sizeof(Results));
  auto* results = reinterpret_cast<Results*>(memory.data());
  stream.largest(matrix, {}, &results->largest);
  device::host().wait(stream.record());
  stream.squares(matrix, quanta_or_nan(results->largest, matrix.numel()), {}, &results->sum);
  device::host().wait(stream.record());
  return results->sum.norm();
}

// Newton and Schulz's steps with the coefficients of Muon's authors, which take singular values
// from (0, 1] to about 1. `matrix` is divided by its norm. The product of the matrix and its
// transpose is the smaller one of the two that there are, and symmetric to the bit; so multiplying
// with it from either side has the same terms in the same order.
void orthogonalise(device::Stream& stream,
                   const Span& matrix,
                   std::int64_t rows,
                   std::int64_t columns) {
  constexpr double kA = 3.4445;
  constexpr double kB = -4.7750;
  constexpr double kC = 2.0315;
  constexpr int kSteps = 5;
  const bool wide = rows <= columns;
  const std::int64_t small = std::min(rows, columns);
  const Span gram = stream.scratch(matrix.dtype(), small * small);
  const Span mixed = stream.scratch(matrix.dtype(), small * small);
  const Span other = stream.scratch(matrix.dtype(), matrix.numel());
  // Without their owners, which stay here: no call has to keep them.
  const auto bare = [](const Span& span) {
    return Span(span.bytes(), span.numel(), span.dtype(), {}, span.device());
  };
  Span x = bare(matrix);
  Span next = bare(other);
  for (int step = 0; step < kSteps; ++step) {
    stream.multiply({.dtype = matrix.dtype(),  // gram = X X' or X' X
                     .rows = small,
                     .columns = small,
                     .depth = std::max(rows, columns),
                     .a = x.bytes(),
                     .b = x.bytes(),
                     .c = gram.bytes(),
                     .a_transposed = !wide,
                     .b_transposed = wide});
    stream.copy(bare(mixed), bare(gram));
    stream.multiply({.dtype = matrix.dtype(),  // mixed = b gram + c gram gram
                     .rows = small,
                     .columns = small,
                     .depth = small,
                     .a = gram.bytes(),
                     .b = gram.bytes(),
                     .c = mixed.bytes(),
                     .alpha = kC,
                     .beta = kB});
    stream.copy(next, x);
    stream.multiply({.dtype = matrix.dtype(),  // X = a X + mixed X, or a X + X mixed
                     .rows = rows,
                     .columns = columns,
                     .depth = small,
                     .a = wide ? mixed.bytes() : x.bytes(),
                     .b = wide ? x.bytes() : mixed.bytes(),
                     .c = next.bytes(),
                     .beta = kA});
    std::swap(x, next);
  }
  stream.copy(bare(matrix), x);
}

void update_muon(const MuonOptions& options,
                 const ParameterSlice& slice,
                 const GradientTransform& transform,
                 double lr) {
  const WholeParameter& whole = *slice.whole;
  device::Stream& stream = stream_of(slice);
  const Span memory = stream.scratch(slice.dtype, slice.numel);
  const Span direction(memory.bytes(), slice.numel, slice.dtype, {}, slice.device);
  HWY_DYNAMIC_DISPATCH(muon_momentum)(options, slice, transform, direction.bytes());
  divide_direction(direction, std::max(norm_of(stream, direction), options.eps));
  // As it is in memory, which may be the transposed matrix: that has the transposed result.
  const std::vector<std::int64_t>& sizes = whole.info.sizes;
  const bool columns_first =
      !whole.info.strides.empty() && sizes[1] > 1 && whole.info.strides[1] != 1;
  orthogonalise(stream, direction, sizes[columns_first ? 1 : 0], sizes[columns_first ? 0 : 1]);
  const double shape =
      std::sqrt(std::max(1.0, static_cast<double>(sizes[0]) / static_cast<double>(sizes[1])));
  apply_direction(slice, direction.bytes(), 1 - lr * options.weight_decay, lr * shape);
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
            update_muon(o, slice, transform, lr);
          },
      .takes_whole_parameters = true};
  return definition;
}

}  // namespace detail

template class OptimizerOf<MuonOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
