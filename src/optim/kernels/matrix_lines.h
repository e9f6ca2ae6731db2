// Rows and columns of a parameter's matrices (optim/matrix_lines.h), for devices: device/kernel.h
// says how such texts are written.

constexpr int kMostLeading = 8;  // dimensions that say which matrix it is

// Elements are numbered in the order of the parameter's memory.
struct MatrixPlaces {
  int leading;
  Count sizes[kMostLeading], strides[kMostLeading];  // the fastest last
  Count height, width;                               // of each matrix
  Count row_stride, column_stride;
};

inline Count beginning_of(const MatrixPlaces& places, Count matrix) {
  Count element = 0;
  for (int d = places.leading - 1; d >= 0; --d) {
    element += matrix % places.sizes[d] * places.strides[d];
    matrix /= places.sizes[d];
  }
  return element;
}

// Sums of squares, quantised so that they are exact in any order (trireme/device/square_sum.h), of
// the rows, or of the columns, of what is there of a parameter. So many threads have a line
// together, and those of a line's `chunks` leave what they found side by side.
template <class T>
struct LineSquaresOf {
  struct Arguments {
    Count blocks;
    MatrixPlaces places;
    Address data;  // elements [begin, end) of the parameter
    Count begin, end;
    double coarse, fine;
    Count lines, line_elements;
    Count lines_per_matrix, line_stride, element_stride;
    int together;  // threads of a line: 1, or kTogether
    Count chunk;   // elements of a line that a block looks at
    Count chunks;
    Address partial;  // for each chunk and line, two numbers
  };
  struct Shared {
    double coarse[kThreads];
    double fine[kThreads];
  };
  static constexpr int kTogether = 32;

  static inline void run(const Arguments& a, Count block, Shared& shared) {
    const Count lines_here = kThreads / a.together;
    const Count groups = (a.lines + lines_here - 1) / lines_here;
    const Count first = block % groups * lines_here;
    const Count chunk = block / groups;
    each([&](int thread) {
      double coarse = 0;
      double fine = 0;
      const Count line = first + thread / a.together;
      if (line < a.lines) {
        const Count beginning = beginning_of(a.places, line / a.lines_per_matrix) +
                                line % a.lines_per_matrix * a.line_stride;
        const Count last =
            (chunk + 1) * a.chunk < a.line_elements ? (chunk + 1) * a.chunk : a.line_elements;
        for (Count i = chunk * a.chunk + thread % a.together; i < last; i += a.together) {
          const Count element = beginning + i * a.element_stride;
          if (element >= a.begin && element < a.end) {
            const double value = at<const T>(a.data)[element - a.begin];
            const double square = value * value;
            const double multiple = square + a.coarse - a.coarse;
            coarse += multiple;
            fine += square - multiple + a.fine - a.fine;
          }
        }
      }
      shared.coarse[thread] = coarse;
      shared.fine[thread] = fine;
    });
    if (a.together > 1) {
      const auto sum = [](double one, double other) { return one + other; };
      combine_groups<kTogether>(shared.coarse, sum);
      combine_groups<kTogether>(shared.fine, sum);
    }
    each([&](int thread) {
      const Count line = first + thread / a.together;
      if (thread % a.together == 0 && line < a.lines) {
        double* to = at<double>(a.partial) + 2 * (chunk * a.lines + line);
        to[0] = shared.coarse[thread];
        to[1] = shared.fine[thread];
      }
    });
  }
};
using LineSquaresFloat32 = LineSquaresOf<float>;
using LineSquaresFloat64 = LineSquaresOf<double>;

// What the chunks of each line have left is added to what is there.
struct LineTotals {
  struct Arguments {
    Count blocks;
    Count lines, chunks;
    Address partial;
    Address totals;  // two numbers for each line
  };
  struct Shared {
    double coarse[kThreads];
    double fine[kThreads];
  };
  static constexpr int kTogether = 32;

  static inline void run(const Arguments& a, Count block, Shared& shared) {
    const Count first = block * (kThreads / kTogether);
    each([&](int thread) {
      shared.coarse[thread] = 0;
      shared.fine[thread] = 0;
      const Count line = first + thread / kTogether;
      for (Count chunk = thread % kTogether; line < a.lines && chunk < a.chunks;
           chunk += kTogether) {
        const double* from = at<const double>(a.partial) + 2 * (chunk * a.lines + line);
        shared.coarse[thread] += from[0];
        shared.fine[thread] += from[1];
      }
    });
    const auto sum = [](double one, double other) { return one + other; };
    combine_groups<kTogether>(shared.coarse, sum);
    combine_groups<kTogether>(shared.fine, sum);
    each([&](int thread) {
      const Count line = first + thread / kTogether;
      if (thread % kTogether == 0 && line < a.lines) {
        double* to = at<double>(a.totals) + 2 * line;
        to[0] += shared.coarse[thread];
        to[1] += shared.fine[thread];
      }
    });
  }
};

// For every element what its row and its column say: rows[row] * columns[column] /
// matrices[matrix].
template <class T>
struct SpreadLinesOf {
  struct Arguments {
    Count blocks;
    int dimensions;  // those of a parameter, the fastest last
    Count sizes[kMostLeading + 2], strides[kMostLeading + 2];
    Count row_steps[kMostLeading + 2], column_steps[kMostLeading + 2];
    Count height;
    Address to;  // elements [begin, begin + numel) of the parameter
    Count begin, numel;
    Address rows, columns, matrices;
  };
  struct Shared {};
  static constexpr int kEach = 4;  // elements of a thread

  static inline void run(const Arguments& a, Count block, Shared& /*shared*/) {
    each([&](int thread) {
      for (int k = 0; k < kEach; ++k) {
        const Count i = (block * kEach + k) * kThreads + thread;
        if (i >= a.numel) {
          return;
        }
        Count rest = a.begin + i;
        Count row = 0;
        Count column = 0;
        for (int d = 0; d < a.dimensions; ++d) {
          const Count along = rest / a.strides[d];
          rest -= along * a.strides[d];
          row += along * a.row_steps[d];
          column += along * a.column_steps[d];
        }
        const T product = at<const T>(a.rows)[row] * at<const T>(a.columns)[column];
        at<T>(a.to)[i] = product / at<const T>(a.matrices)[row / a.height];
      }
    });
  }
};
using SpreadLinesFloat32 = SpreadLinesOf<float>;
using SpreadLinesFloat64 = SpreadLinesOf<double>;
