#include "drill_options.h"

#include <filesystem>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::tools {

void add_drill_options(CLI::App& app, DrillFlags& flags) {
  app.add_option("--drill",
                 flags.plan,
                 "Inject faults into an elastic job: kill, stop, disk-full, leave and join, over "
                 "several machines also delay, drop, corrupt, kill-launcher and stop-launcher, as "
                 "in \"kill:p=0.02;stop:2s;leave\" (docs/elastic.md)")
      ->type_name("FAULTS");
  app.add_option_function<std::string>(
         "--drill-seed",
         [&flags](const std::string& text) {
           const auto number = parse_integer(text);
           if (!number || *number < 0) {
             throw CLI::ValidationError(
                 "--drill-seed", "expected a whole number of 0 or more, found \"" + text + "\"");
           }
           flags.seed = static_cast<std::uint64_t>(*number);
         },
         "Which of them happen, where and when (default: 1)")
      ->type_name("SEED");
}

void apply(const DrillFlags& flags, const std::string& folder, LaunchOptions& launch) {
  TRIREME_CHECK(!flags.seed || !flags.plan.empty(),
                "--drill-seed: expected --drill FAULTS, found none");
  if (flags.plan.empty()) {
    return;
  }
  launch.drill = DrillOptions{
      flags.plan, flags.seed.value_or(1), (std::filesystem::path(folder) / kDrillFile).string()};
}

}  // namespace trireme::tools
