#include "trireme/train/preprocessing_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using Missing = CsvOptions::Missing;
using Unseen = CsvOptions::Unseen;

constexpr int kVersion = 1;
constexpr std::pair<Missing, const char*> kMissing[] = {{Missing::kRefuse, "refuse"},
                                                        {Missing::kNan, "fill"},
                                                        {Missing::kZero, "zero"},
                                                        {Missing::kDrop, "drop"}};
constexpr std::pair<SampleKind, const char*> kKinds[] = {{SampleKind::kDense, "dense"},
                                                         {SampleKind::kSparse, "sparse"}};

// A word of a file may be any bytes, and JSON has characters only: such a word is its bytes.
Json word_json(const std::string& word) {
  try {
    Json(word).dump();
    return word;
  } catch (const Json::type_error&) {
    return Json(std::vector<unsigned char>(word.begin(), word.end()));
  }
}

std::string word_of(const Json& json) {
  if (json.is_string()) {
    return json.get<std::string>();
  }
  const auto bytes = json.get<std::vector<unsigned char>>();
  return {bytes.begin(), bytes.end()};
}

Json words_json(const std::vector<std::string>& words) {
  Json all = Json::array();
  for (const std::string& word : words) {
    all.push_back(word_json(word));
  }
  return all;
}

std::vector<std::string> words_of(const Json& json) {
  std::vector<std::string> words;
  for (const Json& word : json) {
    words.push_back(word_of(word));
  }
  return words;
}

template <class Value, std::size_t kCount>
const char* name_of(Value value, const std::pair<Value, const char*> (&names)[kCount]) {
  return std::find_if(std::begin(names),
                      std::end(names),
                      [&](const auto& each) { return each.first == value; })
      ->second;
}

template <class Value, std::size_t kCount>
Value value_of(const std::string& name, const std::pair<Value, const char*> (&names)[kCount]) {
  for (const auto& [value, known] : names) {
    if (name == known) {
      return value;
    }
  }
  throw ConfigError("found \"" + name + "\", which is not known");
}

Json table_json(const Preprocessing& all) {
  Json columns = Json::array();
  for (const TableColumn& column : all.columns) {
    Json written = Json::object();
    if (!column.name.empty()) {
      written["name"] = word_json(column.name);
    }
    if (column.categorical) {
      written["categories"] = words_json(column.categories);
    }
    columns.push_back(std::move(written));
  }
  return {{"separator", all.separator == 0 ? "" : std::string(1, all.separator)},
          {"columns", std::move(columns)},
          {"target", all.target},
          {"missing", name_of(all.missing, kMissing)},
          {"missing_values", words_json(all.missing_values)},
          {"unseen", all.unseen == Unseen::kIgnore ? "ignore" : "refuse"},
          {"checked", words_json(all.checked)}};
}

void read_table(const Json& json, Preprocessing& all) {
  const std::string separator = json.at("separator");
  all.separator = separator.empty() ? '\0' : separator[0];
  for (const Json& column : json.at("columns")) {
    TableColumn& read = all.columns.emplace_back();
    read.name = column.contains("name") ? word_of(column["name"]) : "";
    read.categorical = column.contains("categories");
    if (read.categorical) {
      read.categories = words_of(column["categories"]);
    }
  }
  all.target = json.at("target");
  all.missing = value_of(json.at("missing").get<std::string>(), kMissing);
  all.missing_values = words_of(json.at("missing_values"));
  all.unseen = json.at("unseen") == "ignore" ? Unseen::kIgnore : Unseen::kRefuse;
  all.checked = words_of(json.at("checked"));
}

std::int64_t features_of(const Preprocessing& all) {
  if (all.format != "csv") {
    return all.shape.dense.empty() ? all.shape.features : all.shape.dense[0];
  }
  std::int64_t features = 0;
  for (std::size_t i = 0; i < all.columns.size(); ++i) {
    const TableColumn& column = all.columns[i];
    features += static_cast<std::int64_t>(i) == all.target ? 0
                : column.categorical ? static_cast<std::int64_t>(column.categories.size())
                                     : 1;
  }
  return features;
}

// What was changed by hand may fit no model.
void check(const Preprocessing& all) {
  const auto features =
      static_cast<std::size_t>(all.shape.dense.empty() ? all.shape.features : all.shape.dense[0]);
  const auto fits = [&](const std::vector<double>& values) {
    return values.empty() || (values.size() == features &&
                              std::all_of(values.begin(), values.end(), [](double value) {
                                return std::isfinite(value);
                              }));
  };
  const bool table =
      all.format != "csv" ||
      (all.target >= 0 && all.target < static_cast<std::int64_t>(all.columns.size()) &&
       (all.missing != Missing::kNan || !all.fill.empty()));
  const bool classes =
      all.format == "idx" || static_cast<std::int64_t>(all.classes.size()) == all.shape.classes;
  TRIREME_CHECK(table && classes && features_of(all) == static_cast<std::int64_t>(features) &&
                    fits(all.fill) && fits(all.normalisation.mean) &&
                    all.normalisation.mean.size() == all.normalisation.deviation.size(),
                "its numbers of columns, categories, classes and statistics do not fit each other");
}

Preprocessing from_json(const Json& json) {
  TRIREME_CHECK(json.at("version") == kVersion,
                "expected version {}, found {}",
                {kVersion, json.at("version").dump()});
  Preprocessing all;
  all.format = json.at("format");
  all.shape.kind = value_of(json.at("kind").get<std::string>(), kKinds);
  all.shape.dense = json.at("dense").get<std::vector<std::int64_t>>();
  all.shape.features = json.at("features");
  all.shape.classes = json.at("classes");
  all.classes = words_of(json.at("class_names"));
  if (all.format == "csv") {
    read_table(json.at("table"), all);
  }
  all.fill = json.at("fill").get<std::vector<double>>();
  all.normalisation.mean = json.at("mean").get<std::vector<double>>();
  all.normalisation.deviation = json.at("deviation").get<std::vector<double>>();
  check(all);
  return all;
}

}  // namespace

std::string to_json(const Preprocessing& all) {
  Json json = {{"version", kVersion},
               {"format", all.format},
               {"kind", name_of(all.shape.kind, kKinds)},
               {"dense", all.shape.dense},
               {"features", all.shape.features},
               {"classes", all.shape.classes},
               {"class_names", words_json(all.classes)}};
  if (all.format == "csv") {
    json["table"] = table_json(all);
  }
  json["fill"] = all.fill;
  json["mean"] = all.normalisation.mean;
  json["deviation"] = all.normalisation.deviation;
  return json.dump(1) + "\n";
}

Preprocessing read_preprocessing(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  TRIREME_CHECK(file.good() || file.eof(), "\"", path, "\" could not be read");
  try {
    TRIREME_CHECK(!json_too_deep_at(text), "it is nested too deeply");
    return from_json(Json::parse(text));
  } catch (const std::exception& error) {
    throw ConfigError(
        detail::concat("\"{}\": expected what trireme train has written, found something else: {}; "
                       "train again, or put the file back as it was",
                       {path, error.what()}));
  }
}

}  // namespace trireme
