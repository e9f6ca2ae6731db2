#pragma once

#include <cstddef>
#include <functional>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace trireme::detail {

// The parts as a text, for messages, names and files. Numbers look the same in every program: a
// global locale that groups digits would make a port "29,500".
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

// A text with `kGaps` gaps, each written {}; any other brace is text. The compiler counts them.
template <std::size_t kGaps>
struct Sentence {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is meant to become one.
  consteval Sentence(const char* words) : text(words) {
    std::size_t gaps = 0;
    for (auto gap = text.find("{}"); gap != text.npos; gap = text.find("{}", gap + 2)) {
      ++gaps;
    }
    if (gaps != kGaps) {
      throw "a sentence needs as many gaps as there are values";
    }
  }

  std::string_view text;
};

// What fills a gap: refers to any value that a stream can write.
class Filling {
 public:
  template <class T>
  Filling(const T& value)  // NOLINT(google-explicit-constructor): values are listed as they are.
      : value_(static_cast<const void*>(&value)),
        write_([](std::ostream& out, const void* written) {
          out << *static_cast<const T*>(written);
        }) {}

  void write(std::ostream& out) const { write_(out, value_); }

 private:
  const void* value_;
  void (*write_)(std::ostream& out, const void* value);
};

// concat("rank {} of {}", {rank, world}): the same as concat("rank ", rank, " of ", world), and can
// be read where there are more parts than fit on a line.
template <std::size_t kGaps>
std::string concat(std::type_identity_t<Sentence<kGaps>> sentence,
                   const Filling (&fillings)[kGaps]) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  std::string_view rest = sentence.text;
  for (const Filling& filling : fillings) {
    const std::size_t gap = rest.find("{}");
    filling.write(out << rest.substr(0, gap));
    rest.remove_prefix(gap + 2);
  }
  out << rest;
  return out.str();
}

// "a, b, c": what `text` makes of each value.
template <class Values, class Text = std::identity>
std::string listed(const Values& values, const Text& text = {}, std::string_view between = ", ") {
  std::string all;
  for (const auto& value : values) {
    all += concat(all.empty() ? "" : between, std::invoke(text, value));
  }
  return all;
}

}  // namespace trireme::detail
