#include <iostream>
#include <limits>
#include <memory>

#include "commands.h"
#include "number_options.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {

void add_scale_command(CLI::App& program, Action& action) {
  struct Options {
    int launcher = 0;
    int ranks = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* scale = program.add_subcommand(
      "scale", "Change the number of ranks of a running elastic job: trireme scale JOB N");
  scale
      ->add_option_function<std::string>(
          "JOB",
          [options](const std::string& text) {
            const auto number = parse_integer(text);
            if (!number || *number < 1 || *number > std::numeric_limits<int>::max()) {
              throw CLI::ValidationError(
                  "JOB", "expected the process number of a launcher, found \"" + text + "\"");
            }
            options->launcher = static_cast<int>(*number);
          },
          "The process number that the job printed when it started")
      ->required();
  add_count(*scale, "N", options->ranks, "How many ranks it is to have")->required();
  scale->callback([&action, options] {
    action = [options] {
      const std::string answer =
          ask_job(options->launcher, detail::concat("scale ", options->ranks));
      // "no: why", or what happens.
      TRIREME_CHECK(!answer.starts_with("no: "), answer.substr(4));
      std::cout << answer << "\n";
      return kExitOk;
    };
  });
}

}  // namespace trireme::tools
