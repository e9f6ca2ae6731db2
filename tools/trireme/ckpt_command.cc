#include <limits>
#include <memory>

#include "ckpt.h"
#include "commands.h"

namespace trireme::tools {
namespace {

constexpr const char* kPlace = "A checkpoint, or a run or folder of checkpoints (its newest)";

// One subcommand, whose options live as long as the program may need them.
template <class Options>
std::shared_ptr<Options> add(CLI::App& parent,
                             Action& action,
                             const char* name,
                             const char* help,
                             int (*run)(const Options&),
                             CLI::App** made) {
  auto options = std::make_shared<Options>();
  *made = parent.add_subcommand(name, help);
  (*made)->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
  return options;
}

void add_place(CLI::App& command, std::string& place, const char* help, const char* type) {
  command.add_option("PLACE", place, help)->type_name(type)->required();
}

void add_step(CLI::App& command, Step& step) {
  command
      .add_option(
          "--step", step, "In a run or folder, the checkpoint of this step instead of the newest")
      ->type_name("N");
}

// CLI11's own words would be "Number less or equal to 0".
CLI::Validator from(std::int64_t least) {
  return CLI::Range(least, std::numeric_limits<std::int64_t>::max())
      .description(std::to_string(least) + " or more");
}

void add_ls(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto place = add<std::string>(
      ckpt, action, "ls", "List the checkpoints of a run or folder", list_checkpoints, &command);
  add_place(*command,
            *place,
            "A run, a folder of checkpoints, or a single checkpoint",
            "RUN|FOLDER|CHECKPOINT");
}

void add_show(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options =
      add(ckpt, action, "show", "Show what a checkpoint holds", show_checkpoint, &command);
  add_place(*command, options->place, kPlace, "CHECKPOINT|RUN|FOLDER");
  add_step(*command, options->step);
  command->add_flag("--json", options->json, "Print the complete manifest");
}

void add_verify(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options = add(ckpt,
                           action,
                           "verify",
                           "Read every byte and list everything that is not as it was saved",
                           verify_checkpoints,
                           &command);
  command->footer(
      "Exit codes: 0 everything is as it was saved, 1 something is not, 2 wrong usage.");
  add_place(*command, options->place, kPlace, "CHECKPOINT|RUN|FOLDER");
  add_step(*command, options->step);
  command->add_flag("--all", options->all, "Verify every checkpoint of the run or folder");
}

void add_export(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options =
      add(ckpt, action, "export", "Write weights for other programs", export_weights, &command);
  command->footer(
      "safetensors: one file with the model's names. torch: a file for torch::load(model, OUT).\n"
      "gpt2: Hugging Face's names; if OUT does not end in .safetensors, a folder with "
      "config.json,\n"
      "for from_pretrained.");
  add_place(*command,
            options->source,
            "A checkpoint, a run or folder of checkpoints (its newest), or a .safetensors file",
            "CHECKPOINT|RUN|FILE");
  command->add_option("OUT", options->out, "The file or folder to write")
      ->type_name("OUT")
      ->required();
  command
      ->add_option(
          "--format",
          options->format,
          "safetensors, torch or gpt2 (default: by the ending of OUT: torch for .pt and .pth, "
          "safetensors for .safetensors or none)")
      ->check(CLI::IsMember({"safetensors", "torch", "gpt2"}))
      ->type_name("FORMAT");
  add_step(*command, options->step);
  command->add_flag(
      "--average", options->average, "Export the moving averages instead of the weights");
  command
      ->add_option("--dtype",
                   options->dtype,
                   "float32, float64, float16 or bfloat16 (default: as they were saved)")
      ->check(CLI::IsMember({"float32", "float64", "float16", "bfloat16"}))
      ->type_name("TYPE");
  command
      ->add_option("--heads",
                   options->heads,
                   "For gpt2: number of attention heads (default: from the run's config.json)")
      ->check(from(1))
      ->type_name("N");
  command->add_flag("--force", options->force, "Replace OUT if it exists");
}

void add_import(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options = add(
      ckpt, action, "import", "Make a checkpoint from a file of weights", import_file, &command);
  command->footer("Use the result with trireme train --weights-from.");
  command->add_option("FILE", options->file, "A file of weights")->type_name("FILE")->required();
  command
      ->add_option("FOLDER",
                   options->folder,
                   "A folder for checkpoints, not a run's; created if it does not exist")
      ->type_name("FOLDER")
      ->required();
  command
      ->add_option("--format",
                   options->format,
                   "safetensors, torch (written by torch::save(model, FILE)), gpt2 (Hugging Face's "
                   "names), or auto, which inspects the file (default: auto)")
      ->check(CLI::IsMember({"auto", "safetensors", "torch", "gpt2"}))
      ->type_name("FORMAT");
  command->add_option("--step", options->step, "Step of the checkpoint (default: 0)")
      ->check(from(0))
      ->type_name("N");
  command->add_flag("--untied",
                    options->untied,
                    "For gpt2: give the model a head of its own, copied from the embeddings if the "
                    "file has none");
}

void add_diff(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options = add(ckpt,
                           action,
                           "diff",
                           "Compare two checkpoints or files of weights, element by element",
                           diff_checkpoints,
                           &command);
  command->footer(
      "Exit codes: 0 equal, 1 different, 2 wrong usage, or one of them cannot be read.");
  command->add_option("A", options->a, "A checkpoint, run, folder or .safetensors file")
      ->type_name("A")
      ->required();
  command->add_option("B", options->b, "The other one")->type_name("B")->required();
  command->add_flag_callback(
      "--no-notes", [options] { options->notes = false; }, "Compare tensors only");
  add_step(*command, options->step);
}

void add_prune(CLI::App& ckpt, Action& action) {
  CLI::App* command = nullptr;
  const auto options = add(ckpt,
                           action,
                           "prune",
                           "Remove checkpoints, but never the newest",
                           prune_checkpoints,
                           &command);
  add_place(*command, options->place, "A run, or a folder of checkpoints", "RUN|FOLDER");
  command
      ->add_option(
          "--keep-last", options->keep_last, "The number of newest checkpoints to keep (required)")
      ->check(from(1))
      ->type_name("K")
      ->required();
  command
      ->add_option(
          "--keep-every", options->keep_every, "Also keep those whose step is a multiple of this")
      ->check(from(1))
      ->type_name("N");
  command->add_flag("--dry-run", options->dry_run, "Only list what would be removed");
}

}  // namespace

void add_ckpt_command(CLI::App& program, Action& action) {
  CLI::App* ckpt =
      program.add_subcommand("ckpt", "List, verify, compare, export, import and prune checkpoints");
  ckpt->require_subcommand(1);
  add_ls(*ckpt, action);
  add_show(*ckpt, action);
  add_verify(*ckpt, action);
  add_export(*ckpt, action);
  add_import(*ckpt, action);
  add_diff(*ckpt, action);
  add_prune(*ckpt, action);
}

}  // namespace trireme::tools
