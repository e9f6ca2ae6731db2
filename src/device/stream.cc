#include "device/stream.h"

#include <algorithm>
#include <thread>

namespace trireme::device {

bool Event::wait(const Deadline& deadline) const {
  // Most waits are short; longer ones leave the processor to others.
  constexpr int kYields = 100;
  constexpr auto kPause = std::chrono::microseconds(50);
  for (int i = 0; !passed(); ++i) {
    if (deadline.passed()) {
      return passed();
    }
    if (i < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return true;
}

bool Term::has(std::int64_t element) const {
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (element < absent[i].end) {
      return element < absent[i].begin;
    }
  }
  return true;
}

std::int64_t Term::next_change(std::int64_t element, std::int64_t end) const {
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (element < absent[i].begin) {
      return std::min(end, absent[i].begin);
    }
    if (element < absent[i].end) {
      return std::min(end, absent[i].end);
    }
  }
  return end;
}

void Stream::add(const Span& sums, const ConstSpan& terms, bool first) {
  if (first) {
    copy(sums, terms);
    return;
  }
  const Term term{terms.bytes()};
  const Term old{sums.bytes()};
  std::byte* const output = sums.bytes();
  reduce({.dtype = terms.dtype(),
          .output_dtype = sums.dtype(),
          .range = {0, terms.numel()},
          .terms = std::span(&term, 1),
          .accumulator = &old,
          .outputs = std::span(&output, 1)});
}

}  // namespace trireme::device
