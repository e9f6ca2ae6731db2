// Settings as somebody at a command line knows them.

#include <algorithm>
#include <string_view>

#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

// "-n" is what people type.
std::string typed_flag(const Setting& setting) {
  return setting.name == "ranks" ? "-n" : setting.flag();
}

const Setting* setting_called(const std::string& name) {
  const auto& table = settings_table();
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const Setting& each) { return each.name == name; });
  return found == table.end() ? nullptr : &*found;
}

// What the engine says of its options, whose names are those of the settings: in front of a message
// they become these, as all are named there, and within it flags.
std::string without_engine_options(std::string message) {
  constexpr std::string_view kOption = "EngineOptions::";
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  for (std::size_t at = message.find(kOption); at != std::string::npos;
       at = message.find(kOption, at + 1)) {
    const std::size_t begin = at + kOption.size();
    const std::size_t end = std::min(message.find_first_not_of(kLetters, begin), message.size());
    if (const Setting* setting = setting_called(message.substr(begin, end - begin))) {
      const bool in_front = at < message.find(": ");
      message.replace(at, end - at, in_front ? setting->name : typed_flag(*setting));
    }
  }
  return message;
}

}  // namespace

std::string with_flags(const std::string& said, const std::set<std::string>& given_by_flag) {
  std::string message = without_engine_options(said);
  const std::size_t end = message.find(": ");
  if (end == std::string::npos) {
    return message;
  }
  std::string names;
  for (std::size_t at = 0; at < end;) {
    const std::size_t next = std::min(message.find(", ", at), end);
    const std::string name = message.substr(at, next - at);
    const Setting* const setting = setting_called(name);
    if (setting == nullptr) {
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
