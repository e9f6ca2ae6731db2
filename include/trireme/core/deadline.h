#pragma once

#include <algorithm>
#include <chrono>

namespace trireme {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// The budget of a wait inside another one, which has the deadline.
inline constexpr Milliseconds kForever = std::chrono::hours(24 * 365);

// A moment after which a wait gives up. Every wait in Trireme has one.
class Deadline {
 public:
  // Longer than ten years is ten years: the clock counts nanoseconds in 64 bits.
  explicit Deadline(Milliseconds budget, Clock::time_point now = Clock::now())
      : start_(now), end_(now + std::min<Milliseconds>(budget, kLongest)) {}

  bool passed() const { return Clock::now() >= end_; }
  bool passed_by(Milliseconds more) const { return Clock::now() >= end_ + more; }

  // Never negative.
  Milliseconds left() const {
    const auto left = std::chrono::duration_cast<Milliseconds>(end_ - Clock::now());
    return left.count() < 0 ? Milliseconds(0) : left;
  }

  // Time that does not count: this process was stopped.
  void extend(Clock::duration by) { end_ += by; }

  double elapsed_seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  static constexpr Milliseconds kLongest = std::chrono::hours(24 * 3650);

  Clock::time_point start_;
  Clock::time_point end_;
};

}  // namespace trireme
