#include "optim/matrix_lines.h"

#include <algorithm>
#include <memory>

#include "device/driver.h"
#include "device/host/kernel_words.h"
#include "optim/formula_texts.h"
#include "optim/matrix_walk.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using namespace device::by_turns;  // NOLINT(google-build-using-namespace): the words of the text
#include "optim/kernels/matrix_lines.h"

// Elements of a line that one block of threads looks at, at least; lines have at most so many
// blocks.
constexpr Count kLeastChunk = 512;
constexpr Count kMostChunks = 4096;

struct Dimension {
  Count size;
  Count stride;
};

Count stride_of(const ParameterInfo& parameter, std::size_t dimension) {
  if (!parameter.strides.empty()) {
    return parameter.strides[dimension];
  }
  Count stride = 1;
  for (std::size_t d = dimension + 1; d < parameter.sizes.size(); ++d) {
    stride *= parameter.sizes[d];
  }
  return stride;
}

MatrixPlaces places_of(const ParameterInfo& parameter) {
  const std::size_t dimensions = parameter.sizes.size();
  MatrixPlaces places{};
  places.height = parameter.sizes[dimensions - 2];
  places.width = parameter.sizes[dimensions - 1];
  places.row_stride = stride_of(parameter, dimensions - 2);
  places.column_stride = stride_of(parameter, dimensions - 1);
  std::vector<Dimension> leading;
  for (std::size_t d = 0; d + 2 < dimensions; ++d) {
    const Dimension next{parameter.sizes[d], stride_of(parameter, d)};
    if (!leading.empty() && leading.back().stride == next.size * next.stride) {
      leading.back() = {leading.back().size * next.size, next.stride};  // both as one
    } else if (next.size > 1) {
      leading.push_back(next);
    }
  }
  TRIREME_CHECK(leading.size() <= static_cast<std::size_t>(kMostLeading),
                "parameter {} has more dimensions in an order of their own than kernels take ({}): "
                "make it contiguous, or move the model to the CPU",
                {parameter.name, kMostLeading});
  places.leading = static_cast<int>(leading.size());
  for (std::size_t d = 0; d < leading.size(); ++d) {
    places.sizes[d] = leading[d].size;
    places.strides[d] = leading[d].stride;
  }
  return places;
}

Address address_of(const void* data) {
  return reinterpret_cast<Address>(data);
}

Count parts_of(Count count, Count part) {
  return (count + part - 1) / part;
}

template <class T>
void run(device::Stream& stream, const char* name, const typename T::Arguments& arguments) {
  if (arguments.blocks > 0) {
    stream.run(block_kernel<T>(name, kernel_texts(), arguments));
  }
}

// The rows, or the columns, of elements on a device.
void add_squares(device::Stream& stream,
                 const MatrixPlaces& places,
                 bool rows,
                 Count lines,
                 std::int64_t begin,
                 const ConstSpan& data,
                 const SquareQuanta& quanta,
                 double* totals) {
  const Count line_stride = rows ? places.row_stride : places.column_stride;
  const Count element_stride = rows ? places.column_stride : places.row_stride;
  const Count elements = rows ? places.width : places.height;
  // Neighbours among the threads are neighbours in memory.
  constexpr int kTogether = LineSquaresFloat32::kTogether;
  const int together = elements > 1 && element_stride <= line_stride ? kTogether : 1;
  const Count chunk = std::max(kLeastChunk, parts_of(elements, kMostChunks));
  const Count chunks = parts_of(elements, chunk);
  const Span partial = stream.scratch(Dtype::kFloat64, 2 * chunks * lines);
  const Count groups = parts_of(lines, kThreads / together);
  const auto squares = [&](auto kernel, const char* name) {
    run<decltype(kernel)>(stream,
                          name,
                          {.blocks = groups * chunks,
                           .places = places,
                           .data = address_of(data.bytes()),
                           .begin = begin,
                           .end = begin + data.numel(),
                           .coarse = quanta.coarse,
                           .fine = quanta.fine,
                           .lines = lines,
                           .line_elements = elements,
                           .lines_per_matrix = rows ? places.height : places.width,
                           .line_stride = line_stride,
                           .element_stride = element_stride,
                           .together = together,
                           .chunk = chunk,
                           .chunks = chunks,
                           .partial = address_of(partial.bytes())});
  };
  data.dtype() == Dtype::kFloat64 ? squares(LineSquaresFloat64(), "LineSquaresFloat64")
                                  : squares(LineSquaresFloat32(), "LineSquaresFloat32");
  run<LineTotals>(stream,
                  "LineTotals",
                  {.blocks = parts_of(lines, kThreads / LineTotals::kTogether),
                   .lines = lines,
                   .chunks = chunks,
                   .partial = address_of(partial.bytes()),
                   .totals = address_of(totals)});
}

void add_square(double value, const SquareQuanta& quanta, double* coarse_and_fine) {
  const double square = value * value;
  const double multiple = square + quanta.coarse - quanta.coarse;
  coarse_and_fine[0] += multiple;
  coarse_and_fine[1] += square - multiple + quanta.fine - quanta.fine;
}

template <class T>
void add_squares_here(MatrixWalk walk,
                      const ConstSpan& data,
                      const SquareQuanta& quanta,
                      double* rows,
                      double* columns) {
  const auto* values = reinterpret_cast<const T*>(data.bytes());
  for (std::int64_t i = 0; i < data.numel(); ++i, walk.next()) {
    add_square(values[i], quanta, rows + 2 * walk.row());
    add_square(values[i], quanta, columns + 2 * walk.column());
  }
}

template <class T>
void spread_here(MatrixWalk walk, const std::array<Span, 3>& factors, const Span& to) {
  const auto* rows = reinterpret_cast<const T*>(factors[0].bytes());
  const auto* columns = reinterpret_cast<const T*>(factors[1].bytes());
  const auto* matrices = reinterpret_cast<const T*>(factors[2].bytes());
  auto* values = reinterpret_cast<T*>(to.bytes());
  for (std::int64_t i = 0; i < to.numel(); ++i, walk.next()) {
    values[i] = rows[walk.row()] * columns[walk.column()] / matrices[walk.matrix()];
  }
}

template <class Kernel>
void spread_there(device::Stream& stream,
                  const char* name,
                  const ParameterInfo& parameter,
                  const std::array<Span, 3>& factors,
                  std::int64_t begin,
                  const Span& to) {
  typename Kernel::Arguments arguments{};
  arguments.blocks = parts_of(to.numel(), Kernel::kEach * kThreads);
  for (const MatrixWalk::Dimension& dimension : MatrixWalk(parameter, 0).slowest_first()) {
    TRIREME_CHECK(arguments.dimensions < kMostLeading + 2,
                  "parameter {} has more dimensions than kernels take ({}): move the model to the "
                  "CPU",
                  {parameter.name, kMostLeading + 2});
    arguments.sizes[arguments.dimensions] = dimension.size;
    arguments.strides[arguments.dimensions] = dimension.stride;
    arguments.row_steps[arguments.dimensions] = dimension.row;
    arguments.column_steps[arguments.dimensions] = dimension.column;
    ++arguments.dimensions;
  }
  arguments.height = parameter.sizes[parameter.sizes.size() - 2];
  arguments.to = address_of(to.bytes());
  arguments.begin = begin;
  arguments.numel = to.numel();
  arguments.rows = address_of(factors[0].bytes());
  arguments.columns = address_of(factors[1].bytes());
  arguments.matrices = address_of(factors[2].bytes());
  run<Kernel>(stream, name, arguments);
}

template <class T>
Span on_device(Device device, std::span<const double> values) {
  const auto here = std::make_shared<std::vector<T>>(values.size());
  std::ranges::transform(values, here->begin(), [](double value) { return static_cast<T>(value); });
  const auto numel = static_cast<std::int64_t>(values.size());
  Span span(here->data(), numel, DtypeOf<T>::kValue, here);
  if (device.is_host()) {
    return span;
  }
  device::Stream& stream = device::driver(device).stream();
  Span there = stream.scratch(DtypeOf<T>::kValue, numel);
  stream.copy(there, span);
  return there;
}

}  // namespace

void add_line_squares(const ParameterInfo& parameter,
                      std::int64_t begin,
                      const ConstSpan& data,
                      const SquareQuanta& quanta,
                      double* rows,
                      double* columns) {
  const MatrixWalk walk(parameter, begin);
  if (data.device().is_host()) {
    data.dtype() == Dtype::kFloat64 ? add_squares_here<double>(walk, data, quanta, rows, columns)
                                    : add_squares_here<float>(walk, data, quanta, rows, columns);
    return;
  }
  device::Stream& stream = device::driver(data.device()).stream();
  const MatrixPlaces places = places_of(parameter);
  add_squares(stream, places, true, walk.rows(), begin, data, quanta, rows);
  add_squares(stream, places, false, walk.columns(), begin, data, quanta, columns);
}

LineFactors::LineFactors(const ParameterInfo& parameter,
                         Dtype dtype,
                         Device device,
                         std::span<const double> rows,
                         std::span<const double> columns,
                         std::span<const double> matrices)
    : parameter_(parameter) {
  const auto there = [&](std::span<const double> values) {
    return dtype == Dtype::kFloat64 ? on_device<double>(device, values)
                                    : on_device<float>(device, values);
  };
  factors_ = {there(rows), there(columns), there(matrices)};
}

void LineFactors::spread(std::int64_t begin, const Span& to) const {
  const bool wide = to.dtype() == Dtype::kFloat64;
  if (to.device().is_host()) {
    const MatrixWalk walk(parameter_, begin);
    wide ? spread_here<double>(walk, factors_, to) : spread_here<float>(walk, factors_, to);
    return;
  }
  device::Stream& stream = device::driver(to.device()).stream();
  wide ? spread_there<SpreadLinesFloat64>(
             stream, "SpreadLinesFloat64", parameter_, factors_, begin, to)
       : spread_there<SpreadLinesFloat32>(
             stream, "SpreadLinesFloat32", parameter_, factors_, begin, to);
}

}  // namespace trireme::detail
