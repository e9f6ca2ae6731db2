#pragma once

#include <string>

#include "trireme/settings/train_settings.h"

namespace trireme {

// Why a setting has no effect beside the others, in words that end a message: "the model mlp does
// not use it, but gpt and bert do: leave it out, or choose another --model". Empty where it has
// one. `settings` are resolved; a format of "auto" is one that nobody knows.
std::string why_unused(const std::string& setting, const TrainSettings& settings);

// Those that have one, of settings that are resolved, on data in this format: one JSON object. A
// warm-up of -1 is the number of steps that it comes to, or left out where that follows from the
// size of the data.
std::string used_settings_json(TrainSettings settings, const std::string& format);

}  // namespace trireme
