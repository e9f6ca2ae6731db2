// The commands that are the worker's, with its help and its flags.

#include "commands.h"
#include "sibling.h"
#include "trireme/core/error.h"
#include "trireme/settings/model_kinds.h"

namespace trireme::tools {

std::vector<std::string> split_off_worker_words(std::vector<std::string>& words) {
  if (words.empty() || (words.front() != "sample" && words.front() != "predict")) {
    return {};
  }
  std::vector<std::string> rest(words.begin() + 1, words.end());
  words.resize(1);
  return rest;
}

void add_worker_commands(CLI::App& program, Action& action, const std::vector<std::string>& words) {
  const std::pair<std::string, std::string> commands[] = {
      {"predict",
       detail::concat("Predict with a trained ",
                      models_for("predict"),
                      " model: trireme predict RUN --data FILE")},
      {"sample",
       detail::concat("Generate text with a trained ",
                      models_for("sample"),
                      ": trireme sample RUN --prompt TEXT")}};
  for (const auto& [name, what] : commands) {
    CLI::App* command = program.add_subcommand(name, what);
    command->set_help_flag();  // its program has one
    command->callback([&action, words, name = name] {
      action = [words, name] {
        std::vector<std::string> arguments = words;
        arguments.insert(arguments.begin(), name);
        return run_worker(arguments);
      };
    });
  }
}

}  // namespace trireme::tools
