#pragma once

#include <string>
#include <vector>

#include "trireme/core/log.h"

namespace trireme::detail {

// What rank 0 has seen while it waited (who was refused, who was lost), for the message at the
// deadline. Not without end, since anyone can be refused.
class Remarks {
 public:
  // True where there was still room.
  bool add(const std::string& text) {
    if (texts_.size() == kMost) {
      return false;
    }
    texts_.push_back(text);
    return true;
  }
  // One that the user should see at once, too.
  void warn(const std::string& text) {
    if (add(text)) {
      log(LogLevel::kWarning, text);
    }
  }

  // "; first; second".
  std::string text() const {
    std::string all;
    for (const std::string& text : texts_) {
      all += "; " + text;
    }
    return all;
  }

 private:
  static constexpr std::size_t kMost = 20;

  std::vector<std::string> texts_;
};

}  // namespace trireme::detail
