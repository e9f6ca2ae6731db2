#include "settings/field.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <type_traits>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

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

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : between) + word;
  }
  return text;
}

[[noreturn]] void refuse(const std::string& name,
                         const std::string& wanted,
                         const std::string& found) {
  throw ConfigError(
      concat(name, ": expected ", wanted, ", found ", found.empty() ? "nothing" : found));
}

std::string number_text(double value) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << value;
  return out.str();
}

constexpr const char* kAutomatic = "auto";

void check_bounds(const std::string& name, double value, const Bounds& bounds) {
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
constexpr double kLargestNumber = 1e30;

template <class T>
Bounds bounds_for(Bounds bounds) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::vector<double>>) {
    bounds.least = std::max(bounds.least, -kLargestNumber);
    bounds.most = std::min(bounds.most, kLargestNumber);
  }
  return bounds;
}

bool is_utf8(const std::string& text) {
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
constexpr const char* kWholeNumber =
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
    refuse(name, "true or false", '"' + text + '"');
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
    if (!bounds.choices.empty() && !(bounds.may_be_empty && text.empty()) &&
        std::find(bounds.choices.begin(), bounds.choices.end(), text) == bounds.choices.end()) {
      const std::string near = nearest_name(text, bounds.choices);
      refuse(name,
             joined(bounds.choices, ", "),
             '"' + text + '"' + (near.empty() ? "" : " (did you mean " + near + "?)"));
    }
    if (!is_utf8(text)) {  // it is written as JSON, which has nothing else
      refuse(name, "text in UTF-8", '"' + text + '"');
    }
    return text;
  }
}

}  // namespace

template <class T>
Setting field(const std::string& name,
              T TrainSettings::*member,
              const std::string& meaning,
              const Bounds& given,
              const std::vector<std::string>& deepspeed) {
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
    return Json(settings.*member).dump();
  };
  setting.default_text = setting.to_json({});
  setting.absent_text = bounds.absent;
  setting.automatic_number = bounds.automatic_by_word ? bounds.automatic : std::nullopt;
  return setting;
}

#define TRIREME_FIELD(T)                     \
  template Setting field(const std::string&, \
                         T TrainSettings::*, \
                         const std::string&, \
                         const Bounds&,      \
                         const std::vector<std::string>&)
TRIREME_FIELD(std::string);
TRIREME_FIELD(bool);
TRIREME_FIELD(std::int64_t);
TRIREME_FIELD(std::uint64_t);
TRIREME_FIELD(double);
TRIREME_FIELD(std::vector<std::int64_t>);
TRIREME_FIELD(std::vector<double>);
TRIREME_FIELD(std::vector<std::string>);
#undef TRIREME_FIELD

}  // namespace trireme::detail
