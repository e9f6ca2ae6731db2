#include "prediction_output.h"

#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "trireme/core/concat.h"

namespace trireme::worker {
namespace {

using Json = nlohmann::ordered_json;
using detail::concat;

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos && !text.starts_with(' ') &&
      !text.ends_with(' ')) {
    return text;
  }
  std::string quoted = "\"";
  for (const char letter : text) {
    quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  }
  return quoted + '"';
}

class CsvFormat final : public PredictionFormat {
 public:
  explicit CsvFormat(const PredictionFacts& facts) : facts_(facts) {}

  std::string begin() override {
    std::string text = facts_.has_targets ? "row,target,prediction" : "row,prediction";
    for (const std::string& name : facts_.classes) {
      text += ',' + cell("probability_" + name);
    }
    return text + '\n';
  }
  std::string sample(const PredictedSample& sample) override {
    std::string text = std::to_string(sample.row);
    if (facts_.has_targets) {
      text += ',' + cell(sample.target);
    }
    text += ',' + (sample.has_prediction ? cell(sample.prediction) : "");
    for (const float probability : sample.probabilities) {
      text += ',' + (sample.has_prediction ? number_text(probability) : "");
    }
    return text + '\n';
  }
  std::string end(const std::optional<std::map<std::string, double>>& /*metrics*/) override {
    return {};
  }

 private:
  PredictionFacts facts_;
};

// A path may be any bytes; JSON has characters only.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The same of names, which have to stay different: one that is not UTF-8 is the list of its bytes,
// as in preprocessing.json.
Json name_json(const std::string& name) {
  try {
    Json(name).dump();
    return name;
  } catch (const Json::type_error&) {
    return Json(std::vector<unsigned char>(name.begin(), name.end()));
  }
}

// JSON has no numbers that are not finite.
std::string json_number(const std::string& text) {
  return text.find_first_of("nN") == std::string::npos ? text : "null";
}

// One object, written as it comes: a line for each sample.
class JsonFormat final : public PredictionFormat {
 public:
  explicit JsonFormat(const PredictionFacts& facts) : facts_(facts) {}

  std::string begin() override {
    Json head = {{"run", facts_.run}, {"weights", facts_.weights}, {"data", facts_.data}};
    for (const std::string& name : facts_.classes) {
      head["classes"].push_back(name_json(name));
    }
    std::string text = dump(head);
    text.pop_back();
    return text + ",\n\"predictions\":[";
  }
  std::string sample(const PredictedSample& sample) override {
    std::string text = concat(first_ ? "\n" : ",\n", "{\"row\":", sample.row);
    first_ = false;
    if (facts_.has_targets) {
      text += ",\"target\":" + value(sample.target);
    }
    text += ",\"prediction\":" + (sample.has_prediction ? value(sample.prediction) : "null");
    if (!sample.probabilities.empty()) {
      text += ",\"probabilities\":[";
      for (std::size_t i = 0; i < sample.probabilities.size(); ++i) {
        const std::string number = number_text(sample.probabilities[i]);
        text += (i == 0 ? "" : ",") + (sample.has_prediction ? json_number(number) : "null");
      }
      text += ']';
    }
    return text + '}';
  }
  std::string end(const std::optional<std::map<std::string, double>>& metrics) override {
    return concat("\n]", metrics ? ",\n\"metrics\":" + dump(Json(*metrics)) : "", "}\n");
  }

 private:
  // A class by its name, or a number as it is.
  std::string value(const std::string& text) const {
    return facts_.classes.empty() ? json_number(text) : dump(name_json(text));
  }

  PredictionFacts facts_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<PredictionFormat> prediction_format(const std::string& name,
                                                    const PredictionFacts& facts) {
  if (name == "json") {
    return std::make_unique<JsonFormat>(facts);
  }
  return std::make_unique<CsvFormat>(facts);
}

std::string number_text(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace trireme::worker
