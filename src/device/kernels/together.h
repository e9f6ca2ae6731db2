// What the threads of a block do together, for the kernels of rooms (device/kernel.h). Text for
// whoever says what `each` is.

// values[first of a group] becomes what combine makes of those of its kGroup threads, a power of
// two.
template <int kGroup, class T, class Combine>
inline void combine_groups(T* values, const Combine& combine) {
  for (int step = kGroup / 2; step > 0; step /= 2) {
    each([&](int thread) {
      if (thread % kGroup < step) {
        values[thread] = combine(values[thread], values[thread + step]);
      }
    });
  }
}

// values[thread] becomes the sum of those of the threads before it; `totals` is room for as many.
// Returns the array of the two in which the result is.
inline int* sums_before(int* values, int* totals) {
  each([&](int thread) { totals[thread] = thread == 0 ? 0 : values[thread - 1]; });
  for (int step = 1; step < kThreads; step *= 2) {
    each([&](int thread) {
      values[thread] = totals[thread] + (thread >= step ? totals[thread - step] : 0);
    });
    int* const swapped = values;
    values = totals;
    totals = swapped;
  }
  return totals;
}
