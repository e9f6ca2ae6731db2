#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>

#include "trireme/launch/launcher.h"

namespace trireme::tools {

// --drill and --drill-seed.
struct DrillFlags {
  std::string plan;
  std::optional<std::uint64_t> seed;
};
// `flags` outlives the parsing.
void add_drill_options(CLI::App& app, DrillFlags& flags);
// What the flags say; what happens is recorded in this folder, or in the current one.
void apply(const DrillFlags& flags, const std::string& folder, LaunchOptions& launch);

// The file of a drill's records in the folder of a run.
inline constexpr char kDrillFile[] = "drill.json";

}  // namespace trireme::tools
