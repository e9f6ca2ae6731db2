#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Numbers and texts as the bytes of a message, the same on every machine.

namespace trireme::detail {

// For what may be any number.
inline constexpr int kAny = std::numeric_limits<int>::max();

class Packer {
 public:
  Packer& number(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (unsigned byte = 0; byte < 8; ++byte) {
      bytes_ += static_cast<char>(bits >> (8 * byte) & 0xff);
    }
    return *this;
  }
  Packer& text(std::string_view value) {
    number(static_cast<std::int64_t>(value.size()));
    bytes_ += value;
    return *this;
  }
  Packer& texts(const std::vector<std::string>& values) {
    number(static_cast<std::int64_t>(values.size()));
    for (const std::string& value : values) {
      text(value);
    }
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a Packer wrote. The bytes may come from a stranger: after anything that does not fit,
// everything reads as 0 and empty, and `complete` is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  std::int64_t number() {
    if (rest_.size() < 8) {
      fail();
      return 0;
    }
    std::uint64_t bits = 0;
    for (unsigned byte = 0; byte < 8; ++byte) {
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[byte])) << (8 * byte);
    }
    rest_.remove_prefix(8);
    return static_cast<std::int64_t>(bits);
  }
  // A number that must be in [minimum, maximum].
  int number_in(int minimum, int maximum) {
    const std::int64_t value = number();
    if (value < minimum || value > maximum) {
      fail();
      return 0;
    }
    return static_cast<int>(value);
  }
  std::string text() {
    const std::int64_t length = number();
    if (length < 0 || static_cast<std::uint64_t>(length) > rest_.size()) {
      fail();
      return {};
    }
    std::string value(rest_.substr(0, static_cast<std::size_t>(length)));
    rest_.remove_prefix(static_cast<std::size_t>(length));
    return value;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> values;
    for (std::int64_t left = number(); left > 0 && !failed_; --left) {
      values.push_back(text());
    }
    return values;
  }
  bool failed() const { return failed_; }
  // Everything was there, and nothing is left.
  bool complete() const { return !failed_ && rest_.empty(); }

 private:
  void fail() {
    failed_ = true;
    rest_ = {};
  }

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace trireme::detail
