// A configuration as JSON: read with every name checked, written flat.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "settings/deepspeed_names.h"
#include "settings/json_mistakes.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/log.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"

namespace trireme {

using Json = nlohmann::json;
using detail::concat;

namespace {

using Problems = std::vector<std::string>;

// Flags of the command that are not settings: where and how ranks are started is a matter of each
// start, and no part of a run.
constexpr std::array<std::pair<const char*, const char*>, 17> kOnlyFlags = {{
    {"elastic", "--elastic MIN:MAX"},
    {"restart", "--restart N"},
    {"heartbeat", "--heartbeat S"},
    {"stall", "--stall S"},
    {"nnodes", "--nnodes M"},
    {"node_rank", "--node-rank K"},
    {"rendezvous", "--rendezvous HOST:PORT"},
    {"store", "--store etcd://HOST:PORT"},
    {"token_file", "--token-file FILE"},
    {"interfaces", "--interfaces A,B"},
    {"backend", "--backend NAME"},
    {"algorithm", "--algorithm NAME"},
    {"sum_group", "--sum-group N"},
    {"encrypt", "--encrypt"},
    {"resume", "--resume"},
    {"config", "--config FILE"},
    {"print_config", "--print-config"},
}};

std::string unknown_name(const std::string& name, const std::vector<std::string>& known) {
  for (const auto& [only, flag] : kOnlyFlags) {
    if (name == only) {
      return concat(
          "\"{}\" is not a setting of a run: expected it as a flag of trireme train, {}; take it "
          "out of the file",
          {name, flag});
    }
  }
  const std::string near = nearest_name(name, known);
  return concat("unknown name \"{}\"{}",
                {name,
                 near.empty() ? "; trireme train --help lists all of them"
                              : concat("; did you mean \"", near, "\"?")});
}

// A parser keeps the last value of a name that is there twice, and says nothing.
Json parse_with_repetitions(const std::string& text, Problems& repetitions) {
  std::vector<std::map<std::string, int>> names;  // of the objects that are open: how often
  return Json::parse(text, [&](int, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key &&
               ++names.back()[parsed.get<std::string>()] == 2) {
      repetitions.push_back(
          concat("the name {} appears twice in one object: expected each name once; leave one out",
                 {parsed.dump()}));
    }
    return true;
  });
}

// Which of the two counts would be anybody's guess.
void refuse_two_names(detail::DeepspeedNotes& notes) {
  for (const auto& [name, other] : notes.set_by) {
    if (notes.own.count(name) > 0) {
      notes.problems.push_back(
          concat("expected one name for each setting, found \"{}\" and DeepSpeed's {}, which set "
                 "the same thing: leave one of them out",
                 {name, other}));
    }
  }
}

Json parsed(const std::string& text, const std::string& source, Problems& problems) {
  if (const auto deep = json_too_deep_at(text)) {
    throw ConfigError(
        concat("{}, byte {}: expected settings, which have at most {} levels of JSON, found more",
               {source, *deep, kMostJsonLevels}));
  }
  Json json;
  try {
    json = parse_with_repetitions(text, problems);
  } catch (const Json::parse_error& error) {
    throw ConfigError(concat(source, ": ", detail::describe_mistake(text, error)));
  } catch (const Json::out_of_range& error) {
    throw ConfigError(concat(source, ": ", detail::describe_mistake(text, error)));
  }
  TRIREME_CHECK(json.is_object(),
                "{}: expected one JSON object { \"name\": value, ... }, found {}",
                {source, json.type_name()});
  return json;
}

// All at once: who mends a file wants to know what else is wrong with it.
void refuse_problems(const Problems& problems, const std::string& source) {
  if (problems.empty()) {
    return;
  }
  if (problems.size() == 1) {
    throw ConfigError(concat(source, ": ", problems.front()));
  }
  std::string text = concat(source, ": ", problems.size(), " problems:");
  for (const std::string& problem : problems) {
    text += concat("\n  ", problem);
  }
  throw ConfigError(text);
}

}  // namespace

const Setting* find_setting(const std::string& name) {
  const std::vector<Setting>& table = settings_table();
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const Setting& setting) { return setting.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::string value_text(const std::string& name, const TrainSettings& settings) {
  const auto value = Json::parse(find_setting(name)->to_json(settings));
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void apply_json(TrainSettings& settings,
                const std::string& text,
                const std::string& source,
                const std::set<std::string>& flags) {
  detail::DeepspeedNotes notes;
  notes.flags = flags;
  const Json json = parsed(text, source, notes.problems);
  std::vector<std::string> names = detail::deepspeed_names();
  for (const Setting& setting : settings_table()) {
    names.push_back(setting.name);
  }
  // "optimizer" and "tensorboard" are a word here and an object there.
  const auto is_own = [](const auto& item) {
    return find_setting(item.key()) != nullptr && !item.value().is_object();
  };
  const auto for_each_of = [&](bool own, const auto& action) {
    for (const auto& item : json.items()) {
      if (is_own(item) == own) {
        notes.attempt([&] { action(item.key(), item.value()); });
      }
    }
  };
  // Ours first: what comes of DeepSpeed's depends on the number of steps, say.
  for_each_of(/*own=*/true, [&](const std::string& name, const Json& value) {
    find_setting(name)->set_json(settings, value.dump());
    notes.own.insert(name);
  });
  for_each_of(/*own=*/false, [&](const std::string& name, const Json& value) {
    if (!detail::apply_deepspeed(settings, name, value, notes)) {
      throw ConfigError(unknown_name(name, names));
    }
  });
  refuse_two_names(notes);
  refuse_problems(notes.problems, source);
  detail::apply_deepspeed_defaults(settings, json, notes);
  for (const std::string& name : notes.without_effect) {
    log(LogLevel::kWarning, concat(source, ": ", name, " has no effect here"));
  }
  for (const std::string& text_of_note : notes.remarks) {
    log(LogLevel::kWarning, concat(source, ": ", text_of_note));
  }
}

TrainSettings recorded_settings(const std::string& text, const std::string& source) {
  TrainSettings settings;
  for (const Setting& setting : settings_table()) {
    if (!setting.absent_text.empty()) {
      setting.set_json(settings, setting.absent_text);
    }
  }
  Problems problems;
  parsed(text, source, problems);  // what is wrong with it is said of the text as it is
  refuse_problems(problems, source);
  apply_json(settings, in_todays_words(text), source);
  return settings;
}

std::string in_todays_words(const std::string& text) {
  Json json = Json::parse(text);
  for (const Setting& setting : settings_table()) {
    if (setting.automatic_number && json.value(setting.name, Json()) == *setting.automatic_number) {
      json[setting.name] = Json::parse(setting.default_text);
    }
  }
  TrainSettings sizes{.model = "gpt"};
  for (const char* name : {"model", "size"}) {
    try {
      find_setting(name)->set_json(sizes, json.at(name).dump());
    } catch (const std::exception&) {
      // Not there, or nothing that is known, which is said when it is read.
    }
  }
  fill_in_size(sizes);
  for (const auto& [name, value] :
       {std::pair("layers", sizes.layers), {"width", sizes.width}, {"heads", sizes.heads}}) {
    if (json.value(name, Json()) == 0) {
      json[name] = value;
    }
  }
  return json.dump();
}

std::string to_json(const TrainSettings& settings) {
  nlohmann::ordered_json json;
  for (const Setting& setting : settings_table()) {
    json[setting.name] = nlohmann::ordered_json::parse(setting.to_json(settings));
  }
  return json.dump(2);
}

}  // namespace trireme
