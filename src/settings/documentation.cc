// The table of settings for people: as a page, and as lines for --help.

#include <algorithm>
#include <sstream>

#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

constexpr std::size_t kHelpWidth = 100;
constexpr std::size_t kHelpIndent = 8;

// For a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    result += letter == '|' ? "\\|" : std::string(1, letter);
  }
  return result;
}

std::string shown_default(const Setting& setting) {
  return setting.default_text == "\"\"" || setting.default_text == "[]" ? "empty"
                                                                        : setting.default_text;
}

std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  std::string line(kHelpIndent, ' ');
  for (std::string word; words >> word;) {
    if (line.size() + word.size() + 1 > kHelpWidth && line.size() > kHelpIndent) {
      result += line + "\n";
      line.assign(kHelpIndent, ' ');
    }
    line += (line.size() > kHelpIndent ? " " : "") + word;
  }
  return result + line + "\n";
}

}  // namespace

std::string settings_page() {
  std::ostringstream out;
  std::string group;
  for (const Setting& setting : settings_table()) {
    if (setting.group != group) {
      group = setting.group;
      std::string title = group;
      title[0] = static_cast<char>(title[0] - 'a' + 'A');
      out << "\n### " << title << "\n\n"
          << "| flag | JSON | values | default | meaning | in DeepSpeed "
             "|\n|---|---|---|---|---|---|\n";
    }
    out << "| `" << setting.flag() << "` | `" << setting.name << "` | " << cell(setting.kind)
        << " | " << cell(shown_default(setting)) << " | " << cell(setting.meaning) << " | ";
    for (std::size_t i = 0; i < setting.deepspeed.size(); ++i) {
      out << (i > 0 ? ", " : "") << '`' << cell(setting.deepspeed[i]) << '`';
    }
    out << " |\n";
  }
  return out.str();
}

std::string settings_help() {
  std::ostringstream out;
  std::string group;
  for (const Setting& setting : settings_table()) {
    if (setting.group != group) {
      group = setting.group;
      out << "\n" << group << "\n";
    }
    out << "  " << setting.flag() << " <" << setting.kind << ">, default " << shown_default(setting)
        << "\n"
        << wrapped(setting.meaning);
  }
  return out.str();
}

}  // namespace trireme
