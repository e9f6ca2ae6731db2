#include "trireme/core/json_depth.h"

namespace trireme {

std::optional<std::size_t> json_too_deep_at(std::string_view text, int levels) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quoted) {
      if (letter == '\\') {
        ++at;  // whatever follows, it ends no text
      } else if (letter == '"') {
        quoted = false;
      }
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == '[' || letter == '{') {
      if (++depth > levels) {
        return at;
      }
    } else if ((letter == ']' || letter == '}') && depth > 0) {
      --depth;
    }
  }
  return std::nullopt;
}

std::string without_json_name(const std::string& what) {
  const std::size_t end = what.starts_with("[json.") ? what.find("] ") : std::string::npos;
  return end == std::string::npos ? what : what.substr(end + 2);
}

}  // namespace trireme
