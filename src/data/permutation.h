#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "trireme/core/random.h"

namespace trireme::detail {

// A random order of 0 ... n - 1, chosen by a key, of which any place can be asked for without the
// others: nothing is stored per element.
//
// It is a cipher on the smallest set of b-bit numbers that holds n: the number is cut into two
// parts, and in each round one part is changed by a keyed function of the other, which can be
// undone, so that the whole is one-to-one whatever the function is (a Feistel network; Luby and
// Rackoff 1988). A result of n or more is enciphered again until it is below n ("cycle walking",
// Black and Rogaway 2002, section 4): the walk follows a cycle of the cipher, which leads back
// below n, and from two places it never leads to the same. Fewer than two walks are needed on
// average, as 2^b < 2n.
class Permutation {
 public:
  Permutation(std::int64_t n, std::uint64_t key) : n_(static_cast<std::uint64_t>(n)) {
    const int bits = std::max(kFewestBits, static_cast<int>(std::bit_width(n_ - 1)));
    low_bits_ = bits / 2;
    high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
    low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
    for (std::size_t round = 0; round < keys_.size(); ++round) {
      keys_[round] = mix(key, round);
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(n_); }

  std::int64_t at(std::int64_t position) const {
    auto place = static_cast<std::uint64_t>(position);
    do {
      place = encipher(place);
    } while (place >= n_);
    return static_cast<std::int64_t>(place);
  }

 private:
  static constexpr int kFewestBits = 6;

  std::uint64_t encipher(std::uint64_t number) const {
    std::uint64_t low = number & low_mask_;
    std::uint64_t high = number >> low_bits_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      high ^= mix(low ^ keys_[round]) & high_mask_;
      low ^= mix(high ^ keys_[round + 1]) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  std::uint64_t n_;
  int low_bits_ = 0;
  std::uint64_t low_mask_ = 0;
  std::uint64_t high_mask_ = 0;
  // Four rounds make a strong cipher of large numbers; small ones need more. Counted over 50000
  // keys per element, orders of 2 to 33 elements are even with twelve rounds on six bits or more,
  // and uneven by up to a tenth with eight rounds on three.
  std::array<std::uint64_t, 12> keys_{};
};

}  // namespace trireme::detail
