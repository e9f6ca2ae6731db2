#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// What a configuration of DeepSpeed has said besides values.
struct DeepspeedNotes {
  std::set<std::string> own;    // our settings that the file gives by our names
  std::set<std::string> flags;  // and those that flags give, which come after the file
  std::set<std::string> named;  // and those that DeepSpeed's names speak of, were it with "auto"
  std::vector<std::string> without_effect;
  std::vector<std::string> remarks;           // what is done otherwise than by DeepSpeed
  std::vector<std::string> problems;          // what cannot be done
  std::map<std::string, std::string> set_by;  // the names of our settings, and theirs

  // Takes a ConfigError for a problem, so that what comes after it is looked at, too.
  template <class Action>
  void attempt(const Action& action) {
    try {
      action();
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  }
};

// A top-level name of DeepSpeed's configuration that Trireme's has not. False where it is none; the
// settings that correspond to it are set otherwise. Names that tune DeepSpeed's own machinery and
// cannot change a result are collected in `notes`; what would change it and has no counterpart is a
// problem in `notes`, or refused (ConfigError).
bool apply_deepspeed(TrainSettings& settings,
                     const std::string& name,
                     const nlohmann::json& value,
                     DeepspeedNotes& notes);

// What DeepSpeed takes where a configuration that names a batch or an optimizer leaves something
// out, and Trireme would take another value: constant where there is no scheduler, say. To be
// called after all members have been applied. What the file gives otherwise, and what flags give,
// stays.
void apply_deepspeed_defaults(TrainSettings& settings,
                              const nlohmann::json& configuration,
                              const DeepspeedNotes& notes);

// The names it knows, for suggestions.
std::vector<std::string> deepspeed_names();

}  // namespace trireme::detail
