#include "number_options.h"

#include "trireme/core/environment.h"

namespace trireme::tools {
namespace {

constexpr std::int64_t kLargestCount = 1 << 20;

int count_from(const std::string& name, const std::string& text) {
  const auto number = parse_integer(text);
  if (!number || *number < 1 || *number > kLargestCount) {
    throw CLI::ValidationError(name,
                               "expected a whole number from 1 to " +
                                   std::to_string(kLargestCount) + ", found \"" + text + "\"");
  }
  return static_cast<int>(*number);
}

}  // namespace

template <class Count>
CLI::Option* add_count(CLI::App& app,
                       const std::string& name,
                       Count& value,
                       const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [name, &value](const std::string& text) { value = count_from(name, text); }, help)
      ->type_name("N");
}
template CLI::Option* add_count(CLI::App&, const std::string&, int&, const std::string&);
template CLI::Option* add_count(CLI::App&,
                                const std::string&,
                                std::optional<int>&,
                                const std::string&);

CLI::Option* add_optional_seconds(CLI::App& app,
                                  const std::string& name,
                                  std::optional<double>& value,
                                  const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [name, &value](const std::string& text) {
            value = parse_positive(text);
            if (!value) {
              throw CLI::ValidationError(name, "expected seconds above 0, found \"" + text + "\"");
            }
          },
          help)
      ->type_name("SECONDS");
}

}  // namespace trireme::tools
