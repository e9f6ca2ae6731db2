#include "doctor/report.h"

#include <algorithm>
#include <sstream>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLineWidth = 100;

// A finding and the machines that have it.
struct Row {
  const Finding* finding;
  std::vector<int> machines;  // empty: all of them together
};

bool same(const Finding& a, const Finding& b) {
  return a.check == b.check && a.value == b.value && a.verdict == b.verdict && a.advice == b.advice;
}

std::vector<Row> rows_of(const Report& report) {
  std::vector<Row> rows;
  rows.reserve(report.between.size());
  for (const Finding& finding : report.between) {
    rows.push_back({&finding, {}});
  }
  const std::size_t together = rows.size();
  for (std::size_t machine = 0; machine < report.machines.size(); ++machine) {
    for (const Finding& finding : report.machines[machine].findings) {
      const auto found = std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(together),
                                      rows.end(),
                                      [&](const Row& row) { return same(*row.finding, finding); });
      if (found != rows.end()) {
        found->machines.push_back(static_cast<int>(machine));
      } else {
        rows.push_back({&finding, {static_cast<int>(machine)}});
      }
    }
  }
  std::ranges::stable_sort(
      rows, [](const Row& a, const Row& b) { return a.finding->verdict > b.finding->verdict; });
  return rows;
}

std::string machines_of(const Row& row, std::size_t machines) {
  if (row.machines.empty() || row.machines.size() == machines) {
    return "all";
  }
  return listed(row.machines, {}, ",");
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// Lines of at most `width` characters, where words allow it.
std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

std::string title(const Report& report) {
  std::string text = concat("Trireme ", TRIREME_VERSION, " doctor: ");
  const std::size_t ranks = report.machine_of.size();
  if (ranks > 0) {
    text += concat(counted(ranks, "rank"), " on ");
  }
  const std::size_t machines = report.machines.size();
  text += concat(counted(machines, "machine"), " (");
  for (std::size_t i = 0; i < machines; ++i) {
    text +=
        concat(i == 0 ? "" : ", ", machines == 1 ? "" : concat(i, ": "), report.machines[i].name);
  }
  return text + ")\n\n";
}

}  // namespace

Verdict Report::verdict() const {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : between) {
    worst = std::max(worst, finding.verdict);
  }
  for (const MachineReport& machine : machines) {
    for (const Finding& finding : machine.findings) {
      worst = std::max(worst, finding.verdict);
    }
  }
  return worst;
}

std::string report_text(const Report& report) {
  const std::vector<Row> rows = rows_of(report);
  const bool several = report.machines.size() > 1;
  std::size_t check_width = std::string("check").size();
  std::size_t machines_width = std::string("machine").size();
  std::size_t counts[4] = {};
  for (const Row& row : rows) {
    check_width = std::max(check_width, row.finding->check.size());
    machines_width = std::max(machines_width, machines_of(row, report.machines.size()).size());
    ++counts[static_cast<std::size_t>(row.finding->verdict)];
  }
  const std::size_t verdict_width = std::string(verdict_name(Verdict::kProblem)).size();
  const auto beginning =
      [&](const std::string& verdict, const std::string& machines, const std::string& check) {
        return concat("{}  {}{}  ",
                      {padded(verdict, verdict_width),
                       several ? padded(machines, machines_width) + "  " : "",
                       padded(check, check_width)});
      };
  const std::string blank = beginning("", "", "");
  std::string text = title(report);
  text += beginning("", "machine", "check") + "found\n";
  for (const Row& row : rows) {
    const Finding& finding = *row.finding;
    std::string front = beginning(
        verdict_name(finding.verdict), machines_of(row, report.machines.size()), finding.check);
    std::vector<std::string> lines = wrapped(finding.value, kLineWidth - blank.size());
    for (const std::string& line : wrapped("-> " + finding.advice, kLineWidth - blank.size())) {
      if (!finding.advice.empty()) {
        lines.push_back(line);
      }
    }
    for (const std::string& line : lines) {
      text += front + line + "\n";
      front = blank;
    }
  }
  const std::string pairs = pairs_text(report.pairs, report.machine_of);
  text += pairs.empty() ? "" : "\n" + pairs;
  return text + concat("\n{}, {}, {}\n",
                       {counted(counts[3], "problem"),
                        counted(counts[2], "warning"),
                        counted(counts[1], "note")});
}

}  // namespace trireme::detail
