#pragma once

#include <cstdint>

namespace trireme {

// One 64-bit number from several, each bit of which depends on all of theirs. Used wherever a
// random choice must follow from what it is about (seed, epoch, sample) and from nothing else, so
// that any rank, thread or later run makes the same one.
template <class... Words>
constexpr std::uint64_t mix(std::uint64_t first, Words... rest) {
  // The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
  // Generators").
  const auto scramble = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  std::uint64_t state = scramble(first);
  ((state = scramble(state ^ (static_cast<std::uint64_t>(rest) * 0xd1342543de82ef95u))), ...);
  return state;
}

// A stream of numbers from one key. Small, copyable, the same everywhere.
class RandomStream {
 public:
  explicit constexpr RandomStream(std::uint64_t key) : key_(key) {}

  constexpr std::uint64_t next() { return mix(key_, ++count_); }
  // From 0 to bound - 1, without bias worth naming (bound is far below 2^64).
  constexpr std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  // In [0, 1), all 53 bits used.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

}  // namespace trireme
