// Settings as somebody at a command line knows them.

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

// "-n" is what people type.
std::string typed_flag(const Setting& setting) {
  return setting.name == "ranks" ? "-n" : setting.flag();
}

}  // namespace

std::string with_flags(const std::string& message, const std::set<std::string>& given_by_flag) {
  const std::size_t end = message.find(": ");
  if (end == std::string::npos) {
    return message;
  }
  std::string names;
  for (std::size_t at = 0; at < end;) {
    const std::size_t next = std::min(message.find(", ", at), end);
    const std::string name = message.substr(at, next - at);
    const auto& table = settings_table();
    const auto setting = std::find_if(
        table.begin(), table.end(), [&](const Setting& each) { return each.name == name; });
    if (setting == table.end()) {
      return message;
    }
    const std::string flag = typed_flag(*setting);
    names += names.empty() ? "" : ", ";
    names += given_by_flag.contains(name) ? flag : detail::concat(name, " (", flag, ")");
    at = next < end ? next + 2 : end;
  }
  return names + message.substr(end);
}

}  // namespace trireme
