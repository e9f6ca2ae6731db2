#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace trireme {

// What a person wants to know of a running training.
struct Progress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;
  double learning_rate = 0;
  double per_second = 0;
  std::string unit = "samples";  // or "tokens": what is counted per second
  std::int64_t rank_bytes = 0;   // memory of the rank that has most
  double seconds_left = 0;
  std::string note;  // the last evaluation: "eval loss 1.234, accuracy 91.2 %"
};

// "step 120/500  loss 2.1034  lr 3.0e-04  12.3k tokens/s  84 MB/rank  0:42 left  eval ..."
std::string progress_text(const Progress& progress);
// "0:42", "1:02:03", "2 days".
std::string duration_text(double seconds);
// "84 MB", "1.2 GB" (powers of ten), "950", "12.3k", "4.5M".
std::string megabytes_text(std::int64_t bytes);
std::string count_text(double count);
// A loss, or an error in the units of what is predicted, which may be of any size: "2.1034",
// "21.034", "2103.4", "210338", "0.02103", "2.103e-04", "2.103e+07".
std::string measure_text(double value);

// Shows progress: on a terminal one line that is rewritten in place (at most every 100 ms, cut to
// the terminal's width), elsewhere a plain line for each call. Messages appear above the live line.
class ProgressLine {
 public:
  // stdout; looks at whether it is a terminal. Null: nothing is shown.
  explicit ProgressLine(std::FILE* out);
  ~ProgressLine();  // ends a live line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool live() const { return live_; }
  // Something could not be written: most often, nobody reads it any more (`| head`).
  bool lost() const { return out_ != nullptr && std::ferror(out_) != 0; }
  void show(const Progress& progress);
  void message(const std::string& line);
  void finish();  // the last state stays on the screen

 private:
  void write_live(const std::string& text);

  std::FILE* out_;
  bool live_;
  bool drawn_ = false;
  std::string last_;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace trireme
