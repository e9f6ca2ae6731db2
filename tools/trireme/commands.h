#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

// Each subcommand adds itself to the program and, when it was chosen, sets `action`, whose result
// is the exit code.

namespace trireme::tools {

using Action = std::function<int()>;

// `command` is what split_off_command has found.
void add_run_command(CLI::App& program, Action& action, const std::vector<std::string>& command);
// Takes the program to run, and its arguments, off the words of `trireme run ...`: they are not
// options of ours, whatever they look like.
std::vector<std::string> split_off_command(std::vector<std::string>& words);

void add_bench_command(CLI::App& program, Action& action);
void add_ckpt_command(CLI::App& program, Action& action);
void add_compare_command(CLI::App& program, Action& action);
void add_scale_command(CLI::App& program, Action& action);
void add_drill_command(CLI::App& program, Action& action);
void add_doctor_command(CLI::App& program, Action& action);
void add_plot_command(CLI::App& program, Action& action);
void add_train_command(CLI::App& program, Action& action);
// `trireme predict` and `trireme sample`, which need LibTorch: another program runs them. `words`
// is what split_off_worker_words has found.
void add_worker_commands(CLI::App& program, Action& action, const std::vector<std::string>& words);
// Takes the words after their names off: a prompt may look like anything, "--" too.
std::vector<std::string> split_off_worker_words(std::vector<std::string>& words);

}  // namespace trireme::tools
