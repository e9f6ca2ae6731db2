#pragma once

#include <string>
#include <vector>

namespace trireme::bench {

// A table for people: columns as wide as their widest cell, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "4 KiB", "64 MiB".
std::string bytes_text(long long bytes);
// Three significant digits.
std::string number_text(double value);

}  // namespace trireme::bench
