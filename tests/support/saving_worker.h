#pragma once

#include <cstdint>

// What saving_worker and logged_saves save, for themselves and for the tests that look at it.

namespace trireme::testing {

// Number `i` of the state is a sequence of its own: x -> a x + c, modulo 2^64.
inline constexpr std::uint64_t kFactor = 6364136223846793005U;
inline constexpr std::uint64_t kAddend = 1442695040888963407U;

inline std::uint64_t stepped(std::uint64_t value) {
  return kFactor * value + kAddend;
}

// The length of what logged_saves saves: a page and a bit of another on each of two ranks.
inline constexpr std::int64_t kLoggedNumel = 1201;

// So many steps at once: also a x + c.
struct Steps {
  std::uint64_t factor = 1;
  std::uint64_t addend = 0;
  explicit Steps(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) {
      factor *= kFactor;
      addend = stepped(addend);
    }
  }
};

inline std::uint64_t value_after(const Steps& steps, std::int64_t i) {
  const std::uint64_t first = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15U;
  return steps.factor * first + steps.addend;
}
inline std::uint64_t value_after(std::int64_t steps, std::int64_t i) {
  return value_after(Steps(steps), i);
}

}  // namespace trireme::testing
