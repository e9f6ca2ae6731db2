#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"

// A namespace of its own, since the names are common.
namespace trireme::fields {

using detail::concat;
using Json = nlohmann::json;

// What values a setting takes besides those of its type.
struct Bounds {
  double least = -1e300;
  double most = 1e300;
  std::optional<double> automatic{};  // a value that stands for: chosen by the model
  // Written "auto", and its number is refused. Runs of versions that wrote the number are read as
  // they were meant.
  bool automatic_by_word = false;
  std::vector<std::string> choices{};
  bool may_be_empty = false;  // besides the choices
  std::string kind{};         // how help calls it; empty: by the type
  // What a run without this setting did, as JSON: required of every setting that is added.
  std::string absent{};
};

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
std::string kind_of() {
  if constexpr (IsVector<T>::value) {
    return "list of " + kind_of<typename T::value_type>() + "s";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "on/off";
  } else if constexpr (std::is_integral_v<T>) {
    return "integer";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "number";
  } else {
    return "text";
  }
}

inline std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : between) + word;
  }
  return text;
}

[[noreturn]] inline void refuse(const std::string& name,
                                const std::string& wanted,
                                const std::string& found) {
  throw ConfigError(
      concat(name, ": expected ", wanted, ", found ", found.empty() ? "nothing" : found));
}

inline std::string number_text(double value) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << value;
  return out.str();
}

inline constexpr const char* kAutomatic = "auto";

inline void check_bounds(const std::string& name, double value, const Bounds& bounds) {
  const bool upper = bounds.most < 1e300;
  const std::string most = upper ? " and at most " + number_text(bounds.most) : "";
  if (bounds.automatic_by_word) {
    if (value <= bounds.least || value > bounds.most) {
      refuse(name,
             concat("a number above ", bounds.least, most, ", or ", kAutomatic, " for the default"),
             number_text(value));
    }
    return;
  }
  if ((value >= bounds.least && value <= bounds.most) || value == bounds.automatic) {
    return;
  }
  refuse(
      name,
      "a number of at least " + number_text(bounds.least) + most +
          (bounds.automatic ? ", or " + number_text(*bounds.automatic) + " for the default" : ""),
      number_text(value));
}

// Numbers are used as float32, where the products of larger ones are infinite.
inline constexpr double kLargestNumber = 1e30;

template <class T>
Bounds bounds_for(Bounds bounds) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::vector<double>>) {
    bounds.least = std::max(bounds.least, -kLargestNumber);
    bounds.most = std::min(bounds.most, kLargestNumber);
  }
  return bounds;
}

inline bool is_utf8(const std::string& text) {
  try {
    Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

// Whether a whole number is one of the type's: its largest value is not a double, the next power of
// two is.
template <class T>
bool is_within(double value) {
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  return value < end && value >= (std::is_unsigned_v<T> ? 0.0 : -end);
}

template <class T>
inline constexpr const char* kWholeNumber =
    std::is_unsigned_v<T> ? "a whole number from 0 to 2^64 - 1" : "a whole number below 2^63";

template <class T>
T from_text(const std::string& name, const std::string& text, const Bounds& bounds);

template <class T>
T from_json_value(const std::string& name, const Json& json, const Bounds& bounds) {
  if constexpr (IsVector<T>::value) {
    if (!json.is_array()) {
      refuse(name, "a " + kind_of<T>(), json.dump());
    }
    T result;
    for (const Json& item : json) {
      result.push_back(from_json_value<typename T::value_type>(name, item, bounds));
    }
    return result;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) {
      refuse(name, "true or false", json.dump());
    }
    return json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    // 1e5 and 5.0 are what people write for whole numbers.
    const bool whole = json.is_number_integer() ||
                       (json.is_number_float() && std::abs(json.get<double>()) < 0x1p53 &&
                        json.get<double>() == std::floor(json.get<double>()));
    // Integers are exact in JSON, and a double is not at the type's very end.
    const bool fits = whole && (json.is_number_unsigned()
                                    ? json.get<std::uint64_t>() <= std::numeric_limits<T>::max()
                                    : is_within<T>(json.get<double>()));
    if (!fits) {
      refuse(name, kWholeNumber<T>, json.dump());
    }
    check_bounds(name, json.get<double>(), bounds);
    return json.is_number_float() ? static_cast<T>(json.get<double>()) : json.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (bounds.automatic_by_word && json == Json(kAutomatic)) {
      return *bounds.automatic;
    }
    if (!json.is_number()) {
      refuse(name, bounds.automatic_by_word ? "a number or auto" : "a number", json.dump());
    }
    check_bounds(name, json.get<double>(), bounds);
    return json.get<T>();
  } else {
    // A number where text is expected ("micro_batch": 8) is its digits.
    const bool number = json.is_number_integer();
    if (!json.is_string() && !number) {
      refuse(name, bounds.choices.empty() ? "text" : joined(bounds.choices, ", "), json.dump());
    }
    return from_text<T>(name, number ? json.dump() : json.get<std::string>(), bounds);
  }
}

template <class T>
T from_text(const std::string& name, const std::string& text, const Bounds& bounds) {
  if constexpr (IsVector<T>::value) {
    T result;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      const std::size_t begin = word.find_first_not_of(' ');  // "a, b" is "a,b"
      word.erase(0, begin == std::string::npos ? 0 : begin);
      result.push_back(from_text<typename T::value_type>(name, word, bounds));
    }
    return result;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text == "true" || text == "on" || text == "yes" || text == "1") {
      return true;
    }
    if (text == "false" || text == "off" || text == "no" || text == "0") {
      return false;
    }
    refuse(name, "on or off", '"' + text + '"');
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (bounds.automatic_by_word && text == kAutomatic) {
      return static_cast<T>(*bounds.automatic);
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good =
        error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if constexpr (std::is_integral_v<T>) {
      T exact{};  // beyond 2^53 a double is not
      const auto whole = std::from_chars(text.data(), text.data() + text.size(), exact);
      if (whole.ec == std::errc() && whole.ptr == text.data() + text.size()) {
        check_bounds(name, static_cast<double>(exact), bounds);
        return exact;
      }
      if (!good || value != std::floor(value)) {
        refuse(name, "a whole number", '"' + text + '"');
      }
      if (!is_within<T>(value)) {
        refuse(name, kWholeNumber<T>, '"' + text + '"');
      }
    } else if (!good) {
      refuse(name, bounds.automatic_by_word ? "a number or auto" : "a number", '"' + text + '"');
    }
    check_bounds(name, value, bounds);
    return static_cast<T>(value);
  } else {
    const auto found = std::find(bounds.choices.begin(), bounds.choices.end(), text);
    if (!bounds.choices.empty() && !(bounds.may_be_empty && text.empty()) &&
        found == bounds.choices.end()) {
      const std::string near = nearest_name(text, bounds.choices);
      refuse(name,
             joined(bounds.choices, ", "),
             '"' + text + '"' + (near.empty() ? "" : " (did you mean " + near + "?)"));
    }
    if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(found - bounds.choices.begin());
    } else {
      if (!is_utf8(text)) {  // it is written as JSON, which has nothing else
        refuse(name, "text in UTF-8", '"' + text + '"');
      }
      return text;
    }
  }
}

// One entry of the table, bound to a member of TrainSettings. An enumeration has a word for each of
// its values, in their order: Bounds::choices.
template <class T>
Setting field(const std::string& name,
              T TrainSettings::*member,
              const std::string& meaning,
              const Bounds& given = {},
              const std::vector<std::string>& deepspeed = {}) {
  const Bounds bounds = bounds_for<T>(given);
  Setting setting;
  setting.name = name;
  setting.kind = !bounds.choices.empty() ? joined(bounds.choices, "|")
                 : !bounds.kind.empty()  ? bounds.kind
                                         : kind_of<T>();
  setting.kind += bounds.automatic_by_word ? concat(" or ", kAutomatic) : "";
  setting.meaning = meaning;
  setting.deepspeed = deepspeed;
  setting.set_text = [=](TrainSettings& settings, const std::string& text) {
    settings.*member = from_text<T>(name, text, bounds);
  };
  setting.set_json = [=](TrainSettings& settings, const std::string& json) {
    settings.*member = from_json_value<T>(name, Json::parse(json), bounds);
  };
  setting.to_json = [=](const TrainSettings& settings) {
    if constexpr (std::is_same_v<T, double>) {
      if (bounds.automatic_by_word && settings.*member == *bounds.automatic) {
        return Json(kAutomatic).dump();
      }
    }
    if constexpr (std::is_enum_v<T>) {
      const auto at = static_cast<std::size_t>(settings.*member);
      TRIREME_CHECK(at < bounds.choices.size(),
                    "{}: expected {}, found a value that no setting has",
                    {name, joined(bounds.choices, ", ")});
      return Json(bounds.choices[at]).dump();
    } else {
      return Json(settings.*member).dump();
    }
  };
  setting.default_text = setting.to_json({});
  setting.absent_text = bounds.absent;
  setting.automatic_number = bounds.automatic_by_word ? bounds.automatic : std::nullopt;
  return setting;
}

}  // namespace trireme::fields
