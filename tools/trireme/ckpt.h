#pragma once

#include <cstdint>
#include <optional>
#include <string>

// The subcommands of `trireme ckpt`. Each returns the exit code.

namespace trireme::tools {

using Step = std::optional<std::int64_t>;

int list_checkpoints(const std::string& place);

struct ShowOptions {
  std::string place;
  Step step;
  bool json = false;
};
int show_checkpoint(const ShowOptions& options);

struct VerifyOptions {
  std::string place;
  Step step;
  bool all = false;
};
int verify_checkpoints(const VerifyOptions& options);

struct ExportOptions {
  std::string source;
  Step step;
  std::string out;
  std::string format = "auto";
  bool average = false;
  std::string dtype;                  // empty: as saved
  std::optional<std::int64_t> heads;  // of a gpt, where no run says it
  bool force = false;
};
int export_weights(const ExportOptions& options);

struct ImportOptions {
  std::string file;
  std::string folder;
  std::string format = "auto";
  std::int64_t step = 0;
  bool untied = false;
};
int import_file(const ImportOptions& options);

struct DiffOptions {
  std::string a;
  std::string b;
  Step step;
  bool notes = true;
};
int diff_checkpoints(const DiffOptions& options);

struct PruneOptions {
  std::string place;
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  bool dry_run = false;
};
int prune_checkpoints(const PruneOptions& options);

}  // namespace trireme::tools
