#include <cstdio>
#include <memory>

#include "commands.h"
#include "comparison_report.h"
#include "output_file.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {
namespace {

struct CompareOptions {
  std::string a;
  std::string b;
  std::string json_path;
};

int compare(const CompareOptions& options) {
  const Comparison comparison = compare_runs(options.a, options.b);
  std::fputs(report_text(comparison).c_str(), stdout);
  if (!options.json_path.empty()) {
    write_output(options.json_path, report_json(comparison));
  }
  return kExitOk;
}

}  // namespace

void add_compare_command(CLI::App& program, Action& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      program.add_subcommand("compare", "Tell which of two runs is better, and how sure that is");
  command->footer(
      "Runs with the same number of folds are compared over folds, runs evaluated on the same\n"
      "samples over samples; from one number of each, nothing can be said about chance.\n"
      "Results on different data are not compared, nor speeds of different work; it says why.");
  command->add_option("A", options->a, "Folder of a run")->type_name("RUN")->required();
  command->add_option("B", options->b, "Folder of the other")->type_name("RUN")->required();
  command->add_option("--json", options->json_path, "Write everything as JSON too")
      ->type_name("FILE");
  command->callback([&action, options] { action = [options] { return compare(*options); }; });
}

}  // namespace trireme::tools
