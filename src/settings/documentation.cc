// The table of settings for people: as a page, and as lines for --help.

#include <algorithm>
#include <sstream>

#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/settings/model_kinds.h"
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

// Of settings that some models have: whether this one does.
bool has_setting(const ModelKind& model, const std::string& name) {
  const auto holds = [&](const ModelKind& kind) {
    return std::find(kind.settings.begin(), kind.settings.end(), name) != kind.settings.end();
  };
  return holds(model) || std::none_of(model_kinds().begin(), model_kinds().end(), holds);
}

// Rows of a table: the models, then for each default that is the model's own its flag and values.
std::vector<std::vector<std::string>> defaults_of_models() {
  std::vector<std::vector<std::string>> rows = {{"flag"}};
  for (const std::string& name : model_names()) {
    rows.front().push_back(name);
  }
  for (const Setting& setting : settings_table()) {
    const bool fixed = setting.name == "micro_batch";
    std::vector<std::string> row = {setting.flag()};
    for (const std::string& name : model_names()) {
      const ModelKind& kind = model_kind(name);
      const std::string value = setting.to_json(kind.defaults);
      row.push_back(fixed ? detail::concat("up to ", kind.most_micro_batch)
                    : value == setting.default_text || !has_setting(kind, setting.name) ? "-"
                                                                                        : value);
    }
    if (std::any_of(row.begin() + 1, row.end(), [](const auto& text) { return text != "-"; })) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
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
  out << "\n### Defaults of the models\n\n";
  const auto rows = defaults_of_models();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& text : rows[i]) {
      out << "| " << cell(text) << " ";
    }
    out << "|\n";
    for (std::size_t column = 0; i == 0 && column < rows[i].size(); ++column) {
      out << (column == 0 ? "|---|" : "---|") << (column + 1 == rows[i].size() ? "\n" : "");
    }
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
  Table table;
  for (const std::vector<std::string>& row : defaults_of_models()) {
    table.add(row);
  }
  out << "\ndefaults of the models\n" << table.text();
  return out.str();
}

}  // namespace trireme
