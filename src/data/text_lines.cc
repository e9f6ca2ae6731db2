#include "data/text_lines.h"

#include <algorithm>
#include <cstdlib>

#include <locale.h>

#include "data/gzip.h"
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

namespace {

// The name of the encoding for iconv; null: it is another.
const char* utf16_name(std::string_view bytes) {
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff")) {
    return "UTF-16";  // its mark says which
  }
  // Without a mark: every other byte of ASCII is zero.
  constexpr std::size_t kLookedAt = 16;
  if (bytes.size() < kLookedAt) {
    return nullptr;
  }
  const std::size_t zero = bytes[0] == '\0' ? 0 : 1;
  for (std::size_t i = 0; i < kLookedAt; ++i) {
    if ((bytes[i] == '\0') != (i % 2 == zero)) {
      return nullptr;
    }
  }
  return zero == 0 ? "UTF-16BE" : "UTF-16LE";
}

}  // namespace

std::string utf16_problem(std::string_view bytes) {
  const char* const name = utf16_name(bytes);
  return name == nullptr ? ""
                         : concat(
                               "expected text in UTF-8, found UTF-16, as spreadsheets write "
                               "\"Unicode text\": convert it (iconv -f {} -t UTF-8 OLD > NEW)",
                               {name});
}

const char* text_begin(const MappedFile& file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (const std::string problem = utf16_problem(file.bytes()); !problem.empty()) {
    throw_text_error(file, file.begin(), problem);
  }
  if (is_packed_name(file.path()) && is_gzip(file)) {
    throw_text_error(file, file.begin(), packed_twice_problem());
  }
  return file.begin() + (file.bytes().starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
}

namespace {

// What from_chars finds out of range, without telling too large from too small.
double out_of_range(std::string_view text) {
  // strtod() reads a comma for a point where the language of the process has that.
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(std::string(text).c_str(), nullptr, plain);
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {
    value = out_of_range(text);
  }
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
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
                  concat("{}: line {}, column {} (byte {}): {}",
                         {file.path(), line, offset - line_begin + 1, offset, message}));
}

}  // namespace trireme::detail
