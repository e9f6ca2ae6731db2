#include <cstdio>
#include <memory>
#include <optional>

#include "commands.h"
#include "comparison_report.h"
#include "trireme/core/output_file.h"
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
  std::optional<OutputFile> json;  // before the report, below which a refusal would be overlooked
  if (!options.json_path.empty()) {
    json.emplace(options.json_path, "--json");
  }
  if (!is_standard_output(options.json_path)) {
    std::fputs(report_text(comparison).c_str(), stdout);
  }
  if (json) {
    json->write(report_json(comparison));
    json->finish();
  }
  return kExitOk;
}

}  // namespace

void add_compare_command(CLI::App& program, Action& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      program.add_subcommand("compare", "Say which of two runs is better, and with what certainty");
  command->footer(
      "Runs with the same number of folds are compared fold by fold, runs evaluated on the same\n"
      "samples sample by sample; from one number of each, nothing can be said about chance.\n"
      "Results on different data and speeds of different work are not compared; it says why.");
  command->add_option("A", options->a, "The folder of a run")->type_name("RUN")->required();
  command->add_option("B", options->b, "The folder of the other run")->type_name("RUN")->required();
  command
      ->add_option("--json",
                   options->json_path,
                   "Also write everything as JSON; - writes it alone, to standard output")
      ->type_name("FILE");
  command->callback([&action, options] { action = [options] { return compare(*options); }; });
}

}  // namespace trireme::tools
