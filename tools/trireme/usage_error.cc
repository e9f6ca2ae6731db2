#include "usage_error.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
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

// The same for flags: "-n or --ranks", where one has a short name.
std::string which_flag(const std::string& found, const CLI::App& command) {
  if (found == "--version") {
    return "; trireme --version says it";
  }
  const std::string near = nearest_name(found, flags_of(command));
  const CLI::Option* option = near.empty() ? nullptr : command.get_option_no_throw(near);
  // As of trireme train: others are told by their place.
  if (option == nullptr && found == "--run") {
    std::string places;
    for (const CLI::Option* each : command.get_options()) {
      places += each->get_positional() ? " " + each->get_name(/*positional=*/true) : "";
    }
    return places.empty() ? "" : concat("; expected no flag: ", full_name(command), places);
  }
  return option == nullptr ? ""
         : option->get_snames().empty()
             ? concat("; did you mean ", near, "?")
             : concat("; did you mean -{} or {}?", {option->get_snames().front(), near});
}

std::string about_extra_words(const CLI::App& command, const std::vector<std::string>& extra) {
  for (const std::string& word : extra) {
    if (word.size() > 1 && word.starts_with('-') && word != "--") {
      const std::string flag = word.substr(0, word.find('='));
      return concat("expected flags of {}, found {}{}",
                    {full_name(command), detail::printable(flag), which_flag(flag, command)});
    }
  }
  const auto quoted = [](const std::string& word) {
    return concat("\"", detail::printable(word), "\"");
  };
  return concat("expected nothing more for {}, found {}",
                {full_name(command), detail::listed(extra, quoted, " ")});
}

// "--format: gpt3 not in {safetensors,torch,gpt2}", as CLI11 says it; empty: it says something
// else.
std::string about_choice(const std::string& rest) {
  const std::string between = " not in {";
  const std::size_t at = rest.find(between);
  if (at == std::string::npos || !rest.ends_with('}')) {
    return "";
  }
  const std::size_t begin = at + between.size();
  std::istringstream words(rest.substr(begin, rest.size() - 1 - begin));
  std::vector<std::string> names;
  for (std::string name; std::getline(words, name, ',');) {
    names.push_back(name);
  }
  const std::string found = rest.substr(0, at);
  return concat("expected one of {}, found \"{}\"{}",
                {detail::listed(names), detail::printable(found), did_you_mean(found, names)});
}

// "--keep-last: Value 0 not in range 1 to 9223372036854775807".
std::string about_range(const std::string& rest) {
  const std::string before = "Value ";
  const std::string between = " not in range ";
  const std::string to = " to ";
  const std::size_t at = rest.rfind(between);
  const std::size_t middle = rest.rfind(to);
  if (!rest.starts_with(before) || at == std::string::npos || middle < at + between.size()) {
    return "";
  }
  const std::string least = rest.substr(at + between.size(), middle - at - between.size());
  const std::string most = rest.substr(middle + to.size());
  const auto shown = [](const std::string& number) {  // 100.000000 is 100
    return number.find('.') == std::string::npos ? number
                                                 : concat(std::strtod(number.c_str(), nullptr));
  };
  const bool any_above = std::strtod(most.c_str(), nullptr) == std::numeric_limits<double>::max();
  return concat("expected a number {}, found \"{}\"",
                {any_above ? concat("above ", shown(least))  // CLI::PositiveNumber
                 : most == std::to_string(std::numeric_limits<std::int64_t>::max())
                     ? concat("of at least ", shown(least))
                     : concat("from ", shown(least), " to ", shown(most)),
                 detail::printable(rest.substr(before.size(), at - before.size()))});
}

// "--bytes: xb unit not recognized. Allowed values: {b,e,eb,...}".
std::string about_unit(const std::string& rest) {
  const std::size_t at = rest.find(" unit not recognized.");
  return at == std::string::npos ? ""
                                 : concat("expected a size such as 64MiB, found the unit \"",
                                          detail::printable(rest.substr(0, at)),
                                          "\"");
}

// "--prompt: 1 required TEXT missing".
std::string about_absence(const std::string& rest) {
  return rest.starts_with("1 required ") && rest.ends_with(" missing")
             ? "expected a value, found none"
             : "";
}

// "--config: At Most 1 required but received 2".
std::string about_repetition(const std::string& rest) {
  return rest.starts_with("At Most 1 required but received ") ? "expected once, found more often"
                                                              : "";
}

// "Could not convert: --seed = x". All that is converted is numbers, and what a switch is given.
std::string about_number(const CLI::App& command, const std::string& text) {
  const std::string before = "Could not convert: ";
  const std::size_t middle = text.find(" = ");
  if (!text.starts_with(before) || middle == std::string::npos) {
    return "";
  }
  const std::string name = text.substr(before.size(), middle - before.size());
  const CLI::Option* option = command.get_option_no_throw(name);
  return concat(
      "{}: expected {}, found \"{}\"",
      {name,
       option != nullptr && option->get_items_expected_max() == 0 ? "no value" : "a number",
       detail::printable(text.substr(middle + 3))});
}

// "RUN is required": what it is, from its help.
std::string about_required(const CLI::App& command, const std::string& text) {
  const std::string after = " is required";
  const CLI::Option* option =
      text.ends_with(after)
          ? command.get_option_no_throw(text.substr(0, text.size() - after.size()))
          : nullptr;
  if (option == nullptr) {
    return "";
  }
  std::string what = option->get_description();
  what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
  return concat("{}: expected {}, found none",
                {option->get_positional() ? option->get_name(/*positional=*/true)
                                          : text.substr(0, text.size() - after.size()),
                 what});
}

std::string in_our_words(const CLI::App& command, const std::string& text) {
  for (const auto& about : {about_number, about_required}) {
    if (const std::string ours = about(command, text); !ours.empty()) {
      return ours;
    }
  }
  const std::size_t end = text.find(": ");
  const std::string rest = end == std::string::npos ? "" : text.substr(end + 2);
  for (const auto& about :
       {about_choice, about_range, about_unit, about_absence, about_repetition}) {
    if (const std::string ours = about(rest); !ours.empty()) {
      return concat(text.substr(0, end), ": ", ours);
    }
  }
  return text;
}

// A prompt may be empty, and so may the lists among the settings.
bool may_be_empty(const CLI::Option& option) {
  std::string name = option.get_lnames().front();
  std::replace(name.begin(), name.end(), '-', '_');
  const Setting* setting = find_setting(name);
  return name == "prompt" || (setting != nullptr && setting->kind.starts_with("list"));
}

// `found`: empty where there is none.
std::string expected_command(const std::vector<std::string>& commands, const std::string& found) {
  return concat("expected a command ({}), found {}{}",
                {detail::listed(commands),
                 found.empty() ? "none" : concat("\"", detail::printable(found), "\""),
                 found.empty() ? "" : did_you_mean(found, commands)});
}

std::string whose_help(const CLI::App& command) {
  return concat("\nRun \"", full_name(command), " --help\" to see what it takes.");
}

// A value that is attached: `--data=book.txt`.
void check_attached(const CLI::App& command, const std::string& word) {
  const std::size_t equals = word.find('=');
  const CLI::Option* option = word.starts_with("--") && equals != std::string::npos
                                  ? command.get_option_no_throw(word.substr(0, equals))
                                  : nullptr;
  if (option == nullptr) {
    return;
  }
  const std::string flag = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  TRIREME_CHECK(option->get_items_expected_max() > 0,
                "{}: expected no value, found \"{}\"{}",
                {flag, detail::printable(value), whose_help(command)});
  TRIREME_CHECK(!value.empty(),
                "{}: expected a value, found none{}{}",
                {flag,
                 may_be_empty(*option) ? "; an empty one is a word of its own" : "",
                 whose_help(command)});
}

// Of two values, nobody would hear which one counts.
void check_once(const CLI::App& command,
                const std::vector<std::string>& words,
                std::size_t at,
                std::map<const CLI::Option*, std::string>& given) {
  const std::size_t equals = words[at].starts_with("--") ? words[at].find('=') : std::string::npos;
  const std::string flag = words[at].substr(0, equals);
  const CLI::Option* option = flag.starts_with('-') ? command.get_option_no_throw(flag) : nullptr;
  if (option == nullptr || option->get_items_expected_max() != 1) {
    return;  // a list, or a switch
  }
  const std::string value = equals != std::string::npos ? words[at].substr(equals + 1)
                            : at + 1 < words.size()     ? words[at + 1]
                                                        : "";
  const auto [before, is_first] = given.emplace(option, value);
  TRIREME_CHECK(
      is_first,
      "{}: expected once, found twice, with \"{}\" and \"{}\": leave one of them out{}",
      {flag, detail::printable(before->second), detail::printable(value), whose_help(command)});
}

}  // namespace

std::string usage_error_text(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(program);
  const std::vector<std::string> extra = program.remaining(/*recurse=*/true);
  const std::vector<std::string> commands = commands_of(command);
  std::string text = in_our_words(command, error.what());
  if (!commands.empty() && (extra.empty() || !extra.front().starts_with('-'))) {
    text = expected_command(commands, extra.empty() ? "" : extra.front());
  } else if (!extra.empty()) {
    text = about_extra_words(command, extra);
  }
  return concat(text, whose_help(command));
}

void check_values(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  std::map<const CLI::Option*, std::string> given;
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const auto below = command->get_subcommands([](const CLI::App*) { return true; });
    const auto named = std::find_if(below.begin(), below.end(), [&](const CLI::App* each) {
      return each->get_name() == words[i];
    });
    if (named != below.end()) {
      command = *named;
      continue;
    }
    // Before a --help that follows it is answered.
    TRIREME_CHECK(below.empty() || words[i].starts_with('-'),
                  expected_command(commands_of(*command), words[i]),
                  whose_help(*command));
    check_attached(*command, words[i]);
    TRIREME_CHECK(words[i] != "-np" || command->get_option_no_throw("-n") == nullptr,
                  "expected flags of {}, found -np; did you mean -n?{}",
                  {full_name(*command), whose_help(*command)});
    const CLI::Option* option =
        words[i].starts_with('-') ? command->get_option_no_throw(words[i]) : nullptr;
    check_once(*command, words, i, given);
    if (option == nullptr || option->get_items_expected_max() == 0 || i + 1 == words.size()) {
      continue;
    }
    const std::string& value = words[i + 1];
    // A variable of a shell that is not set: not the default, which is had by leaving the flag out.
    TRIREME_CHECK(!value.empty() || may_be_empty(*option),
                  "{}: expected a value, found \"\"{}{}",
                  {words[i],
                   option->get_required() ? "" : ": leave it out for the default",
                   whose_help(*command)});
    if (option->get_items_expected_min() == 0) {
      continue;
    }
    ++i;
    TRIREME_CHECK(!value.starts_with("--") &&
                      (!value.starts_with('-') || command->get_option_no_throw(value) == nullptr),
                  "{}: expected a value, found \"{}\"; one that begins with dashes is written "
                  "--{}=VALUE{}",
                  {words[i - 1],
                   detail::printable(value),
                   option->get_lnames().front(),
                   whose_help(*command)});
  }
}

}  // namespace trireme::tools
