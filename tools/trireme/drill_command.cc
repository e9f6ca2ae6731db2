#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "drill_options.h"
#include "number_text.h"
#include "recoveries.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/output_file.h"
#include "trireme/core/table.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/chart.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using DrillJson = nlohmann::ordered_json;

struct DrillCommand {
  std::string place;
  std::string svg;
  bool json = false;
};

struct SeenFault {
  std::string kind, rank, when, noticed, outcome;
  std::int64_t step = 0;
  std::int64_t again = 0;
  std::optional<double> seconds;
};

std::string drill_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TRIREME_CHECK(file.is_open(),
                "expected the folder of a run with a drill.json, which trireme train --drill and "
                "trireme run --drill write, or that file, found \"{}\": {}",
                {path, detail::errno_text(errno)});
  return {std::istreambuf_iterator<char>(file), {}};
}

SeenFault fault_of(const DrillJson& json) {
  SeenFault fault;
  fault.kind = json.at("kind").get<std::string>();
  fault.step = json.at("step").get<std::int64_t>();
  fault.again = json.at("steps_again").get<std::int64_t>();
  fault.when = json.at("when").get<std::string>();
  fault.outcome = json.at("outcome").get<std::string>();
  if (!json.at("rank").is_null()) {
    fault.rank = detail::concat(json["rank"].get<int>(), " of ", json.at("ranks").get<int>());
    if (json.contains("peer") && !json["peer"].is_null()) {
      fault.rank += detail::concat(", to ", json["peer"].get<int>());
    }
  } else if (fault.kind.ends_with("-launcher")) {
    fault.rank = detail::concat("machine ", json.at("machine").get<int>());
  }
  if (!json.at("next_step_seconds").is_null()) {
    fault.seconds = json["next_step_seconds"].get<double>();
  }
  for (const DrillJson& each : json.at("noticed")) {
    const std::string text = detail::concat(each.at("who").get<std::string>(),
                                            " after ",
                                            bench::number_text(each.at("after_seconds")),
                                            " s");
    fault.noticed += (fault.noticed.empty() ? "" : ", ") + text;
  }
  return fault;
}

// The longest recovery takes all of it.
std::string bar(const SeenFault& fault, double longest) {
  constexpr double kWidth = 30;
  const double share = fault.seconds && longest > 0 ? *fault.seconds / longest : 0;
  return std::string(static_cast<std::size_t>(fault.seconds ? 1 + share * (kWidth - 1) : 0), '#');
}

void print_faults(const std::vector<SeenFault>& faults) {
  double longest = 0;
  std::size_t width = 0;
  for (const SeenFault& fault : faults) {
    width = std::max(width, fault.kind.size());
    longest = std::max(longest, fault.seconds.value_or(0));
  }
  Table table({"fault", "step", "rank", "s to the next step", "steps again"});
  for (const SeenFault& fault : faults) {
    table.add({detail::concat(fault.kind, ", ", fault.when),
               std::to_string(fault.step),
               fault.rank,
               fault.seconds ? bench::number_text(*fault.seconds) : "-",
               std::to_string(fault.again)});
  }
  std::printf("%s\n", table.text().c_str());
  for (const SeenFault& fault : faults) {
    std::printf("step %lld, %s: %s%s%s\n",
                static_cast<long long>(fault.step),
                fault.kind.c_str(),
                fault.outcome.c_str(),
                fault.noticed.empty() ? "" : "; noticed by ",
                fault.noticed.c_str());
  }
  std::printf("\nseconds from the fault to the next step that was kept\n");
  for (const SeenFault& fault : faults) {
    std::printf("%6lld %-*s |%-30s %s\n",
                static_cast<long long>(fault.step),
                static_cast<int>(width),
                fault.kind.c_str(),
                bar(fault, longest).c_str(),
                fault.seconds ? bench::number_text(*fault.seconds).c_str() : "-");
  }
}

std::string drill_svg(const std::vector<SeenFault>& faults) {
  std::map<std::string, ChartLine> lines;
  for (const SeenFault& fault : faults) {
    if (fault.seconds) {
      ChartLine& line = lines[fault.kind];
      line.name = fault.kind;
      line.x.push_back(static_cast<double>(fault.step));
      line.y.push_back(*fault.seconds);
    }
  }
  Chart chart{"recovery from faults", "step", "seconds to the next step", {}};
  for (auto& [kind, line] : lines) {
    chart.lines.push_back(std::move(line));
  }
  return to_svg(chart);
}

int show_drill(const DrillCommand& command) {
  const std::string path =
      fs::is_directory(command.place) ? command.place + "/" + kDrillFile : command.place;
  const std::string text = drill_text(path);
  std::vector<SeenFault> faults;
  std::vector<bench::Recovery> recoveries;
  DrillJson all;
  try {
    all = DrillJson::parse(text);
    for (const DrillJson& each : all.at("faults")) {
      faults.push_back(fault_of(each));
      const SeenFault& fault = faults.back();
      if (fault.seconds) {
        recoveries.push_back({fault.kind, *fault.seconds, fault.again});
      }
    }
    if (command.json) {
      std::printf("%s", text.c_str());
      return kExitOk;
    }
    if (is_standard_output(command.svg)) {
      write_output(command.svg, drill_svg(faults), "-o");
      return kExitOk;
    }
    const auto in_vain = std::count_if(faults.begin(), faults.end(), [](const SeenFault& fault) {
      return fault.outcome.starts_with("not possible");
    });
    std::printf("drill \"%s\", seed %llu: %s, %zu recovered from%s; %s\n\n",
                all.at("drill").get<std::string>().c_str(),
                static_cast<unsigned long long>(all.at("seed").get<std::uint64_t>()),
                detail::counted(faults.size(), "fault").c_str(),
                recoveries.size(),
                in_vain > 0 ? detail::concat(", ", in_vain, " not possible").c_str() : "",
                all.at("exit_code").is_null()
                    ? "the job runs, or was killed"
                    : detail::concat("the job ended with ", all["exit_code"].get<int>()).c_str());
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(detail::concat("\"{}\": expected what a drill has recorded, found: {}",
                                     {path, without_json_name(error.what())}));
  }
  if (!faults.empty()) {
    print_faults(faults);
  }
  if (!recoveries.empty()) {
    std::printf("\n%s", bench::recoveries_text(recoveries).c_str());
  }
  if (!command.svg.empty()) {
    write_output(command.svg, drill_svg(faults), "-o");
    std::printf("%s\n", command.svg.c_str());
  }
  return kExitOk;
}

}  // namespace

void add_drill_command(CLI::App& program, Action& action) {
  auto command = std::make_shared<DrillCommand>();
  CLI::App* drill =
      program.add_subcommand("drill", "Show the faults of a drill and what became of them");
  drill->add_option("RUN,--run", command->place, "The folder of a run, or a drill.json")
      ->type_name("RUN")
      ->required();
  drill
      ->add_option("-o,--output",
                   command->svg,
                   "Draw the times of recovery to this SVG file; - is standard output")
      ->type_name("FILE");
  drill->add_flag("--json", command->json, "Print what was recorded as it is");
  drill->callback([&action, command] { action = [command] { return show_drill(*command); }; });
}

}  // namespace trireme::tools
