#pragma once

#include <string>
#include <vector>

namespace trireme::detail {

// A table for people: columns as wide as their widest cell, the first to the left, numbers to the
// right.
class Columns {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trireme::detail
