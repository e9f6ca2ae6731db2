#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What `trireme predict` writes.

namespace trireme::worker {

struct PredictedSample {
  std::int64_t row = 0;        // of the file, from 0
  bool has_prediction = true;  // else the model's scores are not numbers
  // Of classes their names, else numbers.
  std::string target{};  // empty where the file has none
  std::string prediction{};
  std::span<const float> probabilities{};  // of each class
};

struct PredictionFacts {
  std::string run;
  std::string weights;  // the file they are from
  std::string data;
  std::vector<std::string> classes;  // empty: numbers are predicted
  bool has_targets = false;
};

class PredictionFormat {
 public:
  virtual ~PredictionFormat() = default;
  virtual std::string begin() = 0;
  virtual std::string sample(const PredictedSample& sample) = 0;
  // `metrics`: where the file has targets.
  virtual std::string end(const std::optional<std::map<std::string, double>>& metrics) = 0;
};

// "csv" or "json".
std::unique_ptr<PredictionFormat> prediction_format(const std::string& name,
                                                    const PredictionFacts& facts);

// The shortest text that is this number again; not by printf, whose point is a comma in some
// locales.
std::string number_text(float value);

}  // namespace trireme::worker
