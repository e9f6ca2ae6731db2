#include "settings/deepspeed_items.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"

namespace trireme::detail {

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void set(const Target& target, const char* ours, const std::string& theirs, const Json& value) {
  target.notes.named.insert(ours);
  if (value == "auto") {
    return;  // Hugging Face's word for: as elsewhere
  }
  target.notes.set_by[ours] = theirs;
  try {
    find_setting(ours)->set_json(target.settings, value.dump());
  } catch (const ConfigError& error) {
    throw ConfigError(concat(theirs, " (DeepSpeed's name of ", error.what(), ")"));
  }
}

void require_object(const std::string& name, const Json& value) {
  TRIREME_CHECK(value.is_object(), name, ": expected an object { ... }, found ", value.dump());
}

void refuse_unknown(const std::string& object, const std::string& name, const Names& known) {
  const std::string near = nearest_name(name, known);
  throw ConfigError(
      concat("{}: unknown name \"{}\"{}",
             {object, name, near.empty() ? "" : concat("; did you mean \"", near, "\"?")}));
}

}  // namespace trireme::detail
