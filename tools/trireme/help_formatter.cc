#include "help_formatter.h"

#include <memory>
#include <sstream>
#include <string>

#include <CLI/Formatter.hpp>
#include <CLI/StringTools.hpp>

namespace trireme::tools {
namespace {

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name = make_option_name(option, is_positional);
    std::string value = make_option_opts(option);
    std::string meaning = make_option_desc(option);
    if (is_positional && (value + " ").starts_with(" " + name + " ")) {
      value.erase(0, name.size() + 1);
    } else if (!is_positional && option->get_positional()) {
      const std::string required = " " + get_label("REQUIRED");  // it is enough to give one of them
      if (value.ends_with(required)) {
        value.erase(value.size() - required.size());
      }
      meaning = "The same as " + option->get_name(/*positional=*/true);
    }
    std::stringstream line;
    CLI::detail::format_help(line, name + value, meaning, get_column_width());
    return line.str();
  }
};

}  // namespace

void use_plain_help(CLI::App& program) {
  program.formatter(std::make_shared<HelpFormatter>());
}

}  // namespace trireme::tools
