#pragma once

#include <string>

#include "trireme/comm/world.h"
#include "trireme/settings/train_settings.h"

namespace trireme::worker {

// The text of a file. Throws ConfigError where it cannot be read.
std::string text_of(const std::string& path);

// The settings that trireme train has left for the ranks of this machine, as JSON.
std::string given_settings();

// Once, by the first rank of each machine but rank 0's: where its command had settings other than
// the job's, which it has no say in.
void warn_of_other_settings(const TrainSettings& settings, const World& world);

}  // namespace trireme::worker
