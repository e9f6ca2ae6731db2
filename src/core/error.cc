#include "trireme/core/error.h"

#include <system_error>

namespace trireme::detail {

void throw_internal(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError(concat(
      "internal error in Trireme: {} ({} is false at {}:{}); please report it with this message",
      {message, condition, file, line}));
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace trireme::detail
