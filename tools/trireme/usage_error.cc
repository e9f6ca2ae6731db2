#include "usage_error.h"

#include <vector>

#include "trireme/core/error.h"
#include "trireme/core/printable.h"
#include "trireme/settings/settings_table.h"

namespace trireme::tools {
namespace {

using detail::concat;

// The command that was named last: "ckpt show" of "trireme ckpt show ...".
const CLI::App& chosen_command(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? program : chosen_command(*chosen.back());
}

// "trireme ckpt show".
std::string full_name(const CLI::App& command) {
  const CLI::App* above = command.get_parent();
  return above == nullptr ? command.get_name() : full_name(*above) + " " + command.get_name();
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) {
      continue;  // not for people
    }
    for (const std::string& name : option->get_lnames()) {
      flags.push_back("--" + name);
    }
  }
  return flags;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  return names;
}

std::string did_you_mean(const std::string& found, const std::vector<std::string>& names) {
  const std::string near = nearest_name(found, names);
  return near.empty() ? "" : concat("; did you mean ", near, "?");
}

std::string about_extra_words(const CLI::App& command, const std::vector<std::string>& extra) {
  for (const std::string& word : extra) {
    if (word.size() > 1 && word.starts_with('-') && word != "--") {
      const std::string flag = word.substr(0, word.find('='));
      return concat("expected flags of ",
                    full_name(command),
                    ", found ",
                    detail::printable(flag),
                    did_you_mean(flag, flags_of(command)));
    }
  }
  std::string words;
  for (const std::string& word : extra) {
    words += concat(words.empty() ? "" : " ", "\"", detail::printable(word), "\"");
  }
  return concat("expected nothing more for ", full_name(command), ", found ", words);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += concat(text.empty() ? "" : ", ", name);
  }
  return text;
}

}  // namespace

std::string usage_error_text(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(program);
  const std::vector<std::string> extra = program.remaining(/*recurse=*/true);
  const std::vector<std::string> commands = commands_of(command);
  std::string text = error.what();
  if (!commands.empty() && (extra.empty() || !extra.front().starts_with('-'))) {
    text = concat("expected a command (",
                  list_of(commands),
                  "), found ",
                  extra.empty() ? "none" : concat("\"", detail::printable(extra.front()), "\""),
                  extra.empty() ? "" : did_you_mean(extra.front(), commands));
  } else if (!extra.empty()) {
    text = about_extra_words(command, extra);
  }
  return concat(text, "\nRun \"", full_name(command), " --help\" to see what it takes.");
}

}  // namespace trireme::tools
