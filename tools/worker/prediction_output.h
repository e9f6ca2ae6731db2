#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What `trireme predict` writes.

namespace trireme::worker {

// Standard output, or a file that is there whole or not at all: a link to one stays a link, and
// what is no plain file (a pipe, a device) is written in place. Throws at once where that cannot
// be.
class Output {
 public:
  explicit Output(const std::string& path);  // empty or "-": standard output
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();  // what was not finished is removed

  void write(const std::string& text);
  void finish();

 private:
  void open_in_place();
  [[noreturn]] void refuse() const;
  [[noreturn]] void fail() const;

  std::string path_;
  std::string target_;   // what becomes of
  std::string partial_;  // this; both empty where nothing is replaced
  std::FILE* file_ = nullptr;
};

struct PredictedSample {
  std::int64_t row = 0;  // of the file, from 0
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
