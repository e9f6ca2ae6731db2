#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What a path of the command line leads to: a CHECKPOINT is a folder with manifest.json, a FOLDER
// holds checkpoints (step-00000100, ...), a RUN holds them in its folder checkpoints/. Everything
// here throws ConfigError that says what was expected and what was found.

namespace trireme::tools {

// Whether it is a file, which can only be one of weights.
bool is_weights_file(const std::string& path);

// Whether it is one checkpoint, if perhaps a broken one.
bool is_checkpoint(const std::string& path);

// The folder of checkpoints of a FOLDER or RUN.
std::string checkpoints_of(const std::string& path);

// Of a RUN that has no checkpoint: because it was to save none, or because it was not yet time to.
std::string why_no_checkpoint(const std::string& run);
// The same; empty: it was to save none.
std::string why_no_checkpoint_yet(const std::string& run);

// The CHECKPOINT itself; of a FOLDER or RUN the one of `step`, else the newest.
std::string checkpoint_at(const std::string& path, std::optional<std::int64_t> step);

// The folder of the run that a checkpoint or a file of weights lies in; empty: none.
std::string run_around(const std::string& path);

}  // namespace trireme::tools
