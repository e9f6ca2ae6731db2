#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "commands.h"
#include "run_reader.h"
#include "trireme/core/error.h"
#include "trireme/core/output_file.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/chart.h"
#include "verdict.h"

namespace trireme::tools {
namespace {

constexpr std::string_view kOfEvaluation = "eval.";

struct PlotOptions {
  std::vector<std::string> runs;
  std::string metric = "loss";
  std::string path;
};

// What is drawn under one name: a run, or a fold of one.
struct Source {
  std::string name;
  std::string folder;
  RunLog log;
};

std::string last_part(const std::string& folder) {
  auto path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// A run, or fold, that has not finished its first step has nothing to show beside others.
void leave_out_empty(std::vector<Source>& sources) {
  const auto empty = [](const Source& source) {
    return source.log.training.empty() && source.log.evaluation.empty();
  };
  if (std::all_of(sources.begin(), sources.end(), empty)) {
    return;  // what is missing is said later
  }
  for (const Source& source : sources) {
    if (empty(source)) {
      std::fprintf(
          stderr, "trireme: %s has recorded no step yet: it is left out\n", source.folder.c_str());
    }
  }
  sources.erase(std::remove_if(sources.begin(), sources.end(), empty), sources.end());
}

std::vector<Source> sources_of(const std::vector<std::string>& runs) {
  std::set<std::string> short_names;
  for (const std::string& run : runs) {
    short_names.insert(last_part(run));
  }
  const bool short_is_enough = short_names.size() == runs.size();
  std::vector<Source> sources;
  for (const std::string& run : runs) {
    const auto folders = log_folders(run);
    for (const std::string& folder : folders) {
      std::string name = short_is_enough ? last_part(run) : run;
      if (folder != run) {
        name = runs.size() > 1 ? detail::concat(name, " ", last_part(folder)) : last_part(folder);
      }
      sources.push_back({name, folder, read_log(folder)});
    }
  }
  leave_out_empty(sources);
  return sources;
}

[[noreturn]] void report_missing(const Source& source, const std::string& metric) {
  std::string names;
  for (const auto& [name, series] : source.log.training) {
    names += (names.empty() ? "" : ", ") + name;
  }
  for (const auto& [name, series] : source.log.evaluation) {
    names += (names.empty() ? "" : ", ") + std::string(kOfEvaluation) + name;
  }
  throw ConfigError(detail::concat(
      "{}/metrics.jsonl: expected the metric \"{}\", found {}",
      {source.folder, metric, names.empty() ? "no step: the run has recorded none yet" : names}));
}

const Series* find(const std::map<std::string, Series>& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

// What a step measures is noisy, what it is set to is not; and a few points need no smoothing.
bool is_noisy(const std::string& metric, const Series& series) {
  constexpr std::size_t kFew = 20;
  return metric != "lr" && metric != "epoch" && series.values.size() > kFew;
}

// Over a thirtieth of the run, which the eye can tell from its neighbours; over five steps of a
// short one, where more would lag behind visibly.
double smoothing_for(std::size_t points) {
  return std::max(0.8, 1 - 30 / static_cast<double>(points));
}

void add_training(Chart& chart,
                  const std::string& metric,
                  const Series& series,
                  const std::string& name) {
  const bool noisy = is_noisy(metric, series);
  chart.lines.push_back({name, series.steps, series.values, noisy});
  if (noisy) {
    chart.lines.push_back(
        {name, series.steps, smoothed(series.values, smoothing_for(series.values.size())), false});
  }
}

// As it is printed: what is a share of a whole is in percent.
void show_as_percent(Chart& chart) {
  chart.y_label = "%";
  for (ChartLine& line : chart.lines) {
    for (double& value : line.y) {
      value *= 100;
    }
  }
}

Chart chart_of(const std::vector<Source>& sources, const PlotOptions& options) {
  const bool only_evaluation = options.metric.starts_with(kOfEvaluation);
  const std::string metric =
      only_evaluation ? options.metric.substr(kOfEvaluation.size()) : options.metric;
  const bool alone = sources.size() == 1;
  Chart chart{options.runs.size() == 1 ? options.metric + " of " + last_part(options.runs[0])
                                       : options.metric,
              "step",
              "",  // the title says it
              {}};
  for (const Source& source : sources) {
    const Series* training = only_evaluation ? nullptr : find(source.log.training, metric);
    const Series* evaluation = find(source.log.evaluation, metric);
    if (training == nullptr && evaluation == nullptr) {
      report_missing(source, options.metric);
    }
    if (training != nullptr) {
      add_training(chart, metric, *training, alone ? "training" : source.name);
    }
    // Of several runs, lines of both kinds would be more than one can follow.
    if (evaluation != nullptr && (alone || training == nullptr)) {
      chart.lines.push_back(
          {alone ? "evaluation" : source.name, evaluation->steps, evaluation->values, false});
    }
  }
  if (is_share(metric)) {
    show_as_percent(chart);
  }
  return chart;
}

// Another name may be that of a file which is something else, and would be replaced. What is there
// and no file (a pipe, a device) is written to.
bool may_be_svg(const std::string& path) {
  std::error_code error;
  return path.empty() || is_standard_output(path) || path.ends_with(".svg") ||
         std::filesystem::is_character_file(path, error) || std::filesystem::is_fifo(path, error);
}

int plot(const PlotOptions& options) {
  TRIREME_CHECK(options.runs.size() == 1 || !options.path.empty(),
                "plot: expected -o FILE, to which the chart of {} runs is written, found none",
                {options.runs.size()});
  TRIREME_CHECK(options.metric.find('/') == std::string::npos && !options.metric.empty(),
                "plot: expected the name of a metric, found \"{}\"",
                {options.metric});
  TRIREME_CHECK(
      may_be_svg(options.path),
      "plot: expected a name for an SVG file, found \"{}\": end it with .svg, and for another "
      "format convert the chart with a program such as rsvg-convert",
      {options.path});
  const std::string path =
      options.path.empty() ? options.runs[0] + "/" + options.metric + ".svg" : options.path;
  write_output(path, to_svg(chart_of(sources_of(options.runs), options)), "-o");
  if (!is_standard_output(path)) {
    std::printf("%s\n", path.c_str());
  }
  return kExitOk;
}

}  // namespace

void add_plot_command(CLI::App& program, Action& action) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command = program.add_subcommand("plot", "Plot a metric of one or more runs as SVG");
  command->footer("eval.NAME is a metric of the evaluations only, as in --metric eval.loss.");
  command->add_option("RUN,--run", options->runs, "The folders of runs")
      ->type_name("RUN")
      ->required();
  command->add_option("--metric", options->metric, "Metric to plot (default: loss)")
      ->type_name("NAME");
  command
      ->add_option("-o,--output",
                   options->path,
                   "File to write; - is standard output (default: RUN/NAME.svg)")
      ->type_name("FILE");
  command->callback([&action, options] { action = [options] { return plot(*options); }; });
}

}  // namespace trireme::tools
