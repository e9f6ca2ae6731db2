// A configuration as JSON: read with every name checked, written flat.

#include <set>

#include <nlohmann/json.hpp>

#include "settings/deepspeed_names.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/log.h"
#include "trireme/settings/settings_table.h"

namespace trireme {

using Json = nlohmann::json;
using detail::concat;

namespace {

// A parser keeps the last value of a name that is there twice, and says nothing.
Json parse_without_repetition(const std::string& text, const std::string& source) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  return Json::parse(text, [&](int, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      TRIREME_CHECK(names.back().insert(parsed.get<std::string>()).second,
                    source,
                    ": the name ",
                    parsed.dump(),
                    " appears twice in one object: expected each name once; leave one out");
    }
    return true;
  });
}

// Which of the two counts would be anybody's guess.
void refuse_two_names(const std::set<std::string>& ours,
                      const detail::DeepspeedNotes& theirs,
                      const std::string& source) {
  for (const auto& [name, other] : theirs.set_by) {
    TRIREME_CHECK(ours.count(name) == 0,
                  source,
                  ": expected one name for each setting, found \"",
                  name,
                  "\" and DeepSpeed's ",
                  other,
                  ", which set the same thing: leave one of them out");
  }
}

}  // namespace

void apply_json(TrainSettings& settings, const std::string& text, const std::string& source) {
  if (const auto deep = json_too_deep_at(text)) {
    throw ConfigError(concat(source,
                             ", byte ",
                             *deep,
                             ": expected settings, which have at most ",
                             kMostJsonLevels,
                             " levels of JSON, found more"));
  }
  Json json;
  try {
    json = parse_without_repetition(text, source);
  } catch (const Json::parse_error& error) {
    throw ConfigError(concat(
        source, ", byte ", error.byte, ": expected JSON, found something else: ", error.what()));
  } catch (const Json::out_of_range& error) {
    throw ConfigError(concat(source, ": expected numbers that a double holds: ", error.what()));
  }
  TRIREME_CHECK(json.is_object(),
                source,
                ": expected one JSON object { \"name\": value, ... }, found ",
                json.type_name());
  std::vector<std::string> names = detail::deepspeed_names();
  for (const Setting& setting : settings_table()) {
    names.push_back(setting.name);
  }
  std::set<std::string> own_names;
  detail::DeepspeedNotes notes;
  for (const auto& [name, value] : json.items()) {
    try {
      const Setting* ours = nullptr;
      for (const Setting& setting : settings_table()) {
        ours = setting.name == name ? &setting : ours;
      }
      // "optimizer" and "tensorboard" are a word here and an object there.
      if (ours != nullptr && !value.is_object()) {
        ours->set_json(settings, value.dump());
        own_names.insert(name);
      } else if (!detail::apply_deepspeed(settings, name, value, notes)) {
        const std::string near = nearest_name(name, names);
        throw ConfigError(concat("unknown name \"",
                                 name,
                                 "\"",
                                 near.empty() ? "; trireme train --help lists all of them"
                                              : concat("; did you mean \"", near, "\"?")));
      }
    } catch (const ConfigError& error) {
      throw ConfigError(concat(source, ": ", error.what()));
    }
  }
  refuse_two_names(own_names, notes, source);
  for (const std::string& name : notes.without_effect) {
    log(LogLevel::kWarning, concat(source, ": ", name, " has no effect here"));
  }
}

std::string to_json(const TrainSettings& settings) {
  nlohmann::ordered_json json;
  for (const Setting& setting : settings_table()) {
    json[setting.name] = nlohmann::ordered_json::parse(setting.to_json(settings));
  }
  return json.dump(2);
}

}  // namespace trireme
