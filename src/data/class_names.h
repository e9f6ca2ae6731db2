#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::detail {

// The words that stand for classes in a file, and their numbers: in rising order where all are
// numbers, else in the order of the words. Ways to write one number ("1", "+1", "1.0") are one
// word, which is kept as it is written first.
class ClassNames {
 public:
  ClassNames() = default;
  // Those of a file that was read before: what words() gave.
  explicit ClassNames(const std::vector<std::string>& words);

  // While the file is read: a number for the word in the order of appearance.
  std::int32_t add(std::string_view word);
  // Once it was read: the classes of the numbers that add() gave out.
  std::vector<std::int32_t> classes_in_order();

  // After classes_in_order().
  std::optional<std::int32_t> class_of(std::string_view word) const;
  const std::vector<std::string>& words() const { return words_; }  // by class
  std::int64_t size() const { return static_cast<std::int64_t>(words_.size()); }
  std::string list() const;  // for messages: "a", "b", ...

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>()(word);
    }
  };
  std::vector<std::string> words_;  // by number
  // By the one spelling of what means the same.
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> numbers_;
};

}  // namespace trireme::detail
