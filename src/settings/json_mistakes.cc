#include "settings/json_mistakes.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr const char* kValue =
    "a value (a number, text in double quotes, true, false, null, a list or an object)";

// "line 3, column 7", both from 1; columns count bytes.
std::string place(const std::string& text, std::size_t at) {
  const std::string_view before = std::string_view(text).substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t begin = before.rfind('\n');
  return concat("line ", line, ", column ", begin == std::string_view::npos ? at + 1 : at - begin);
}

bool belongs_to_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
         c == '+';
}

// The word around a place, or the character there. `at` becomes where it begins.
std::string word_at(const std::string& text, std::size_t& at) {
  std::size_t end = at + 1;
  if (belongs_to_word(text[at])) {
    while (at > 0 && belongs_to_word(text[at - 1])) {
      --at;
    }
    while (end < text.size() && belongs_to_word(text[end])) {
      ++end;
    }
  } else {
    // A character of UTF-8 may have more bytes.
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
      --at;
    }
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      ++end;
    }
  }
  return printable(text.substr(at, end - at), 63);
}

// The text in double quotes that ends at `at`, which becomes where it begins.
std::string quoted_text_at(const std::string& text, std::size_t& at) {
  const std::size_t end = at + 1;
  while (at > 0 && !(text[at - 1] == '"' && (at < 2 || text[at - 2] != '\\'))) {
    --at;
  }
  at = at > 0 ? at - 1 : 0;
  return printable(text.substr(at, end - at), 63);
}

// What has to be there. `words` are the parser's, which tell what it was reading.
std::string expected(const std::string& words, const std::string& found) {
  const auto reads = [&](const char* part) { return words.find(part) != std::string::npos; };
  if (reads("invalid string")) {
    return reads("UTF-8") ? "text in UTF-8"
           : reads("control character")
               ? "text on one line, with \\n for a line break and \\t for a "
                 "tab"
           : reads("missing closing") ? "a closing double quote"
                                      : "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX after a "
                                        "backslash in text";
  }
  if (reads("invalid number")) {
    return "a number like 3, 0.5 or 1e-4";
  }
  if (reads("while parsing object key")) {
    return "a name in double quotes";
  }
  if (reads("while parsing object separator")) {
    return "':' after the name";
  }
  if (reads("while parsing object")) {
    return "',' or '}'";
  }
  if (reads("while parsing array")) {
    return "',' or ']'";
  }
  return reads("; expected end of input") ? "nothing more after the last '}'"
         : found.starts_with('/')         ? concat(kValue, "; JSON has no comments")
                                          : kValue;
}

}  // namespace

std::string describe_mistake(const std::string& text, const nlohmann::json::parse_error& error) {
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; })) {
    return "expected JSON, { \"name\": value, ... }, found an empty file";
  }
  const std::string words = error.what();
  std::size_t at = error.byte > 0 ? error.byte - 1 : 0;  // of the last byte that was read
  std::string found;
  if (at >= text.size()) {
    at = text.size();
    found = "the end of the file";
  } else if (words.find("UTF-8") != std::string::npos) {
    found = printable(text.substr(at, 1));
  } else if (text[at] == '"' && words.find("unexpected string literal") != std::string::npos) {
    found = quoted_text_at(text, at);
  } else {
    found = word_at(text, at);
    found = found == "\\x0a" ? "the end of the line" : concat("'", found, "'");
  }
  const std::size_t before = at == 0 ? std::string::npos : text.find_last_not_of(" \t\r\n", at - 1);
  const bool one_too_many = at < text.size() && (text[at] == '}' || text[at] == ']') &&
                            before != std::string::npos && text[before] == ',';
  return concat("{}: expected {}, found {}{}",
                {place(text, at),
                 expected(words, at < text.size() ? text.substr(at, 1) : ""),
                 found,
                 one_too_many ? ": the comma before it is one too many" : ""});
}

std::string describe_mistake(const std::string& text, const nlohmann::json::out_of_range& error) {
  const std::string words = error.what();
  const std::size_t begin = words.find('\'');
  const std::size_t end = words.rfind('\'');
  const std::string number = begin < end ? words.substr(begin + 1, end - begin - 1) : std::string();
  // Where the same characters stand twice, nobody can tell which of them it was.
  const std::size_t first = number.empty() ? std::string::npos : text.find(number);
  const std::size_t at = first == text.rfind(number) ? first : std::string::npos;
  return concat(at == std::string::npos ? "" : concat(place(text, at), ": "),
                "expected numbers that a double holds (up to 1.7e308), found ",
                number.empty() ? "a larger one" : printable(number, 63));
}

}  // namespace trireme::detail
