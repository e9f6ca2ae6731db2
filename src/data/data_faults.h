#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/mapped_file.h"

namespace trireme::detail {

// Something in a file that cannot be used.
struct DataFault {
  std::int64_t offset = 0;
  std::string message;  // what was expected and what was found
  std::string advice;   // what to do, where that is the same for many
};

// What is wrong with a file, in the file's order: the first faults, and how many there are.
class DataFaults {
 public:
  static constexpr std::size_t kMostShown = 20;

  explicit DataFaults(std::size_t most_shown = kMostShown) : most_shown_(most_shown) {}
  // How many more would be shown.
  std::size_t room() const { return most_shown_ - shown_.size(); }

  // `fault` is asked for only where it is shown: there may be one in every cell of a large file.
  void add(const std::function<DataFault()>& fault);
  // Those of a part that comes later in the file.
  void append(const DataFaults& later);
  bool empty() const { return count_ == 0; }

  // For another rank; of_text is the inverse.
  std::string text() const;
  static DataFaults of_text(const std::string& text);

  // One as "FILE: line 3, column 7 (byte 120): ...", several as lines "FILE:3:7: ...".
  [[noreturn]] void throw_error(const MappedFile& file) const;

 private:
  std::size_t most_shown_;
  std::int64_t count_ = 0;
  std::vector<DataFault> shown_;
};

}  // namespace trireme::detail
