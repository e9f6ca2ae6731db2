#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "settings/deepspeed_names.h"
#include "trireme/settings/train_settings.h"

// What the readers of DeepSpeed's sections have in common.

namespace trireme::detail {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

struct Target {
  TrainSettings& settings;
  DeepspeedNotes& notes;
};

bool contains(const Names& names, const std::string& name);

// Sets one of our settings, with DeepSpeed's name in what it says. "auto" leaves it as it is.
void set(const Target& target, const char* ours, const std::string& theirs, const Json& value);

void require_object(const std::string& name, const Json& value);

[[noreturn]] void refuse_unknown(const std::string& object,
                                 const std::string& name,
                                 const Names& known);

// Calls each(name, value) for all members, also after one that is refused.
template <class Each>
void for_each_item(const Json& object, DeepspeedNotes& notes, const Each& each) {
  for (const auto& item : object.items()) {
    notes.attempt([&] { each(item.key(), item.value()); });
  }
}

// The section "scheduler".
void apply_scheduler(TrainSettings& settings, const Json& value, DeepspeedNotes& notes);

}  // namespace trireme::detail
