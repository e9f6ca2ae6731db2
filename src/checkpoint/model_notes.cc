#include "trireme/checkpoint/model_notes.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

constexpr const char* kBuffers = "buffers";
constexpr const char* kEmptyModules = "empty_modules";
constexpr const char* kAliases = "aliases";

// One text for one set of names.
std::string text_of(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return Json(names).dump();
}

template <class T>
std::optional<T> value_in(const Notes& notes, const char* name, const std::string& path) {
  const auto found = notes.find(name);
  if (found == notes.end()) {
    return std::nullopt;
  }
  try {
    if (!json_too_deep_at(found->second)) {
      return Json::parse(found->second).get<T>();
    }
  } catch (const Json::exception&) {  // NOLINT(bugprone-empty-catch): refused below
  }
  throw DataError(path,
                  -1,
                  detail::concat("\"{}\": expected names as JSON for \"{}\", found {}",
                                 {path, name, found->second}));
}

}  // namespace

Notes ModelNotes::to_notes() const {
  Notes notes;
  if (buffers) {
    notes[kBuffers] = text_of(*buffers);
  }
  if (empty_modules) {
    notes[kEmptyModules] = text_of(*empty_modules);
  }
  if (!aliases.empty()) {
    notes[kAliases] = Json(aliases).dump();
  }
  return notes;
}

ModelNotes ModelNotes::from(const Notes& notes, const std::string& path) {
  using Names = std::vector<std::string>;
  using Aliases = std::map<std::string, std::string>;
  return {value_in<Names>(notes, kBuffers, path),
          value_in<Names>(notes, kEmptyModules, path),
          value_in<Aliases>(notes, kAliases, path).value_or(Aliases{})};
}

}  // namespace trireme
