#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <numeric>
#include <string_view>

#include <nlohmann/json.hpp>

#include "run_reader.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/printable.h"

namespace trireme::tools {
namespace {

constexpr const char* kSampleHeader = "sample,target,prediction,loss";
constexpr const char* kTextHeader = "sample,tokens,correct,loss";

// The text up to the next comma, taken off `rest`.
std::string_view next_field(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(','), rest.size());
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

void drop_carriage_return(std::string& line) {
  if (line.ends_with('\r')) {
    line.pop_back();
  }
}

// One run may have written its samples in another order, its ranks having taken turns.
template <class T>
std::vector<T> in_order(const std::vector<T>& values, const std::vector<std::size_t>& order) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const std::size_t i : order) {
    result.push_back(values[i]);
  }
  return result;
}

std::string fingerprint_in(const std::string& folder) {
  std::ifstream file(folder + "/summary.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto summary = json_too_deep_at(text)
                           ? nlohmann::json()
                           : nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = summary.is_object() ? summary.value("evaluation_fingerprint", nlohmann::json())
                                         : nlohmann::json();
  return found.is_string() ? found.get<std::string>() : "";
}

}  // namespace

std::optional<Evaluation> read_evaluation(const std::string& folder) {
  const std::string path = folder + "/evaluation.csv";
  std::ifstream file(path);
  if (!file.good()) {
    return std::nullopt;
  }
  std::string line;
  std::getline(file, line);
  drop_carriage_return(line);
  TRIREME_CHECK(line == kSampleHeader || line == kTextHeader,
                "{}:1: expected the header \"{}\" or \"{}\", found \"{}\"",
                {path, kSampleHeader, kTextHeader, detail::printable(line, 63)});
  Evaluation read;
  read.text = line == kTextHeader;
  for (std::int64_t number = 2; std::getline(file, line); ++number) {
    drop_carriage_return(line);
    std::string_view rest = line;
    std::int64_t sample = 0;
    double target = 0;
    double prediction = 0;
    double loss = 0;
    const bool whole = std::ranges::count(line, ',') == 3;
    const bool good = whole && parse(next_field(rest), sample) && parse(next_field(rest), target) &&
                      parse(next_field(rest), prediction);
    // A loss may be anything that a program prints for a number, or nothing.
    if (good && !parse(next_field(rest), loss)) {
      loss = std::numeric_limits<double>::quiet_NaN();
    }
    TRIREME_CHECK(
        good,
        "{}:{}: expected {}, found \"{}\"",
        {path, number, read.text ? kTextHeader : kSampleHeader, detail::printable(line, 63)});
    read.samples.push_back(sample);
    read.targets.push_back(target);
    read.predictions.push_back(prediction);
    read.losses.push_back(loss);
  }
  std::vector<std::size_t> order(read.samples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return read.samples[a] < read.samples[b]; });
  return Evaluation{read.text,
                    in_order(read.samples, order),
                    in_order(read.targets, order),
                    in_order(read.predictions, order),
                    in_order(read.losses, order),
                    fingerprint_in(folder)};
}

}  // namespace trireme::tools
