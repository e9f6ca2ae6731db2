#include "data/text_lines.h"

#include <algorithm>

#include "trireme/core/printable.h"

namespace trireme::detail {

std::optional<std::string_view> next_line(const MappedFile& file, const char*& from) {
  while (from < file.end()) {
    const auto left = static_cast<std::size_t>(file.end() - from);
    const void* newline = std::memchr(from, '\n', left);
    const char* end = newline == nullptr ? file.end() : static_cast<const char*>(newline);
    const char* begin = from;
    from = newline == nullptr ? end : end + 1;
    if (!std::all_of(begin, end, is_blank)) {  // stops at the first that is not
      if (end[-1] == '\r') {
        --end;
      }
      return std::string_view(begin, static_cast<std::size_t>(end - begin));
    }
  }
  return std::nullopt;
}

const char* text_begin(const MappedFile& file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  return file.begin() + (file.bytes().starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 43;
  return '"' + printable(text, kLongest) + '"';
}

void throw_text_error(const MappedFile& file, const char* place, const std::string& message) {
  // Lines are counted only here: an index of line numbers would be kept for nothing else.
  const std::int64_t line = 1 + std::count(file.begin(), place, '\n');
  const std::size_t before =
      file.bytes().substr(0, static_cast<std::size_t>(place - file.begin())).rfind('\n');
  const std::int64_t line_begin =
      before == std::string_view::npos ? 0 : static_cast<std::int64_t>(before) + 1;
  const std::int64_t offset = file.offset_of(place);
  throw DataError(file.path(),
                  offset,
                  concat(file.path(),
                         ": line ",
                         line,
                         ", column ",
                         offset - line_begin + 1,
                         " (byte ",
                         offset,
                         "): ",
                         message));
}

}  // namespace trireme::detail
