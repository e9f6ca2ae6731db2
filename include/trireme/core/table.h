#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme {

// A table for people: columns as wide as their widest cell, the first to the left, the others,
// numbers mostly, to the right.
class Table {
 public:
  Table() = default;
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trireme
