#pragma once

#include <locale>
#include <string>

namespace trireme::testing {

// A program that has set a global locale whose numbers look like 1.234.567,5, or with another
// separator; as long as this lives. No locale of the system is needed.
class ForeignLocale {
 public:
  explicit ForeignLocale(char separator = '.')
      : before_(
            std::locale::global(std::locale(std::locale::classic(), new Punctuation(separator)))) {}
  ForeignLocale(const ForeignLocale&) = delete;
  ForeignLocale& operator=(const ForeignLocale&) = delete;
  ~ForeignLocale() { std::locale::global(before_); }

 private:
  class Punctuation : public std::numpunct<char> {
   public:
    explicit Punctuation(char separator) : separator_(separator) {}

   protected:
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return separator_; }
    std::string do_grouping() const override { return "\3"; }

   private:
    char separator_;
  };

  std::locale before_;
};

}  // namespace trireme::testing
