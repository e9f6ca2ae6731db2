#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "data/mapped_file.h"
#include "trireme/core/error.h"

// Lines of numbers in a text file.

namespace trireme::detail {

inline bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// The line that begins at `begin`, without its end ("\n" or "\r\n").
inline std::string_view line_at(const MappedFile& file, const char* begin) {
  const auto left = static_cast<std::size_t>(file.end() - begin);
  const void* newline = std::memchr(begin, '\n', left);
  const char* end = newline == nullptr ? file.end() : static_cast<const char*>(newline);
  if (end > begin && end[-1] == '\r') {
    --end;
  }
  return {begin, static_cast<std::size_t>(end - begin)};
}

// The first line at or after `from` that has more than blanks; nullopt at the end of the file.
// `from` becomes the start of the line after it.
std::optional<std::string_view> next_line(const MappedFile& file, const char*& from);

// What is wrong with a text that is in UTF-16, and what to do; empty: it is not.
std::string utf16_problem(std::string_view bytes);

// What is wrong with a zero byte, which makes another word of what looks the same.
inline std::string zero_byte_problem() {
  return "expected text, found a zero byte, which no text in UTF-8 has";
}

// What is wrong with a gzip file that is found in one.
inline std::string packed_twice_problem() {
  return "expected text, found a gzip file in the gzip file: it was compressed twice, unpack it "
         "once (gunzip)";
}

// Where a text begins: after a byte order mark, which spreadsheets like to write. Throws DataError
// for a text in UTF-16.
const char* text_begin(const MappedFile& file);

// A finite number that is the whole of `text`; a leading plus is allowed. One that is too small for
// a double is 0, or the nearest there is (1e-400).
std::optional<double> parse_number(std::string_view text);

// As it is put into messages: in quotes, cut where it is long (between characters), with control
// characters and bytes that are not UTF-8 written as \x1b.
std::string shown(std::string_view text);

// "FILE: line 3, column 7 (byte 120): MESSAGE", of a place in the file.
[[noreturn]] void throw_text_error(const MappedFile& file,
                                   const char* place,
                                   const std::string& message);

}  // namespace trireme::detail
