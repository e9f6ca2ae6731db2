#include "trireme/observe/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include "observe/utf8.h"
#include "trireme/core/printed.h"

namespace trireme {
namespace {

// Faster than anyone reads, slow enough for a remote terminal.
constexpr std::chrono::milliseconds kBetweenDraws{100};
constexpr const char* kEraseToEnd = "\x1b[K";

// The number in the largest of `units` (each 1000 of the one before) of which it has at least one,
// after rounding: 999.96k is 1.0M. One digit after the point where `fine` says so.
template <class Fine>
std::string scaled_text(double number, std::initializer_list<const char*> units, Fine fine) {
  for (const char* const* unit = units.begin();; ++unit) {
    const std::string digits =
        detail::printed(fine(number, unit - units.begin()) ? "%.1f" : "%.0f", number);
    if (unit + 1 == units.end() || std::fabs(std::strtod(digits.c_str(), nullptr)) < 1000) {
      return digits + *unit;
    }
    number /= 1000;
  }
}

bool is_live(std::FILE* out) {
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(out)) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::size_t columns_of(std::FILE* out) {
  winsize size{};
  constexpr std::size_t kUsual = 80;
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsual;
}

// One line, whatever is in the note.
std::string in_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\x1b'; }, ' ');
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e15) {
    return "?";
  }
  const auto all = static_cast<long long>(std::round(seconds));
  constexpr long long kHour = 3600;
  constexpr long long kDay = 24 * kHour;
  if (all >= 2 * kDay) {
    return detail::printed("%lld days", (all + kDay / 2) / kDay);
  }
  return all >= kHour ? detail::printed("%lld:%02lld:%02lld", all / kHour, all / 60 % 60, all % 60)
                      : detail::printed("%lld:%02lld", all / 60, all % 60);
}

// About five digits at every size: no run should look as if its loss were 0.0000, and digits beyond
// those of a float32, as in 123456.7890, say nothing. Errors of prices stay numbers that one reads.
std::string measure_text(double value) {
  const double size = std::fabs(value);
  if (size != 0 && (size < 1e-3 || !(size < 9999999.5))) {
    return detail::printed("%.3e", value);
  }
  // Four after the point from 0.1 up to 10.
  int decimals = size == 0 || size >= 0.099995 ? 4 : size >= 0.0099995 ? 5 : 6;
  for (double bound = 9.99995; size >= bound && decimals > 0; bound *= 10) {
    --decimals;
  }
  return detail::printed("%.*f", decimals, value);
}

std::string megabytes_text(std::int64_t bytes) {
  return scaled_text(static_cast<double>(bytes) / 1000,
                     {" kB", " MB", " GB", " TB"},
                     [](double number, std::ptrdiff_t unit) {
                       return unit > 1 || (unit == 1 && std::fabs(number) < 9.95);
                     });
}

std::string count_text(double count) {
  if (!std::isfinite(count)) {
    return "?";
  }
  return scaled_text(count, {"", "k", "M", "G"}, [](double number, std::ptrdiff_t unit) {
    return unit > 0 || (std::fabs(number) < 99.95 && number != std::round(number));
  });
}

std::string progress_text(const Progress& progress) {
  std::string text = "step " + std::to_string(progress.step);
  if (progress.steps > 0) {
    text += "/" + std::to_string(progress.steps);
  }
  text += "  loss " + measure_text(progress.loss);
  text += "  lr " + detail::printed("%.1e", progress.learning_rate);
  if (progress.per_second > 0) {
    text += "  " + count_text(progress.per_second) + " " + progress.unit + "/s";
  }
  if (progress.rank_bytes > 0) {
    text += "  " + megabytes_text(progress.rank_bytes) + "/rank";
  }
  if (progress.seconds_left > 0) {
    text += "  " + duration_text(progress.seconds_left) + " left";
  }
  if (!progress.note.empty()) {
    text += "  " + progress.note;
  }
  return in_one_line(text);
}

ProgressLine::ProgressLine(std::FILE* out) : out_(out), live_(out != nullptr && is_live(out)) {}

ProgressLine::~ProgressLine() {
  finish();
}

void ProgressLine::show(const Progress& progress) {
  if (out_ == nullptr) {
    return;
  }
  last_ = progress_text(progress);
  if (!live_) {
    std::fprintf(out_, "%s\n", last_.c_str());
    std::fflush(out_);
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!drawn_ || now - shown_ >= kBetweenDraws) {
    write_live(last_);
    shown_ = now;
  }
}

void ProgressLine::message(const std::string& line) {
  if (out_ == nullptr) {
    return;
  }
  if (!drawn_) {
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
    return;
  }
  std::fprintf(out_, "\r%s%s\n", kEraseToEnd, line.c_str());
  write_live(last_);
}

void ProgressLine::finish() {
  if (out_ == nullptr) {
    return;  // else fflush would flush everybody's files
  }
  if (drawn_) {
    write_live(last_);  // the newest state, which may have come too soon after another to be shown
    std::fputc('\n', out_);
    drawn_ = false;
  }
  std::fflush(out_);
}

void ProgressLine::write_live(const std::string& text) {
  // One column stays free: some terminals begin a new line as soon as the last one is filled, and
  // the rewriting would then climb down the screen.
  const std::string seen = detail::first_characters(detail::valid_utf8(text), columns_of(out_) - 1);
  std::fprintf(out_, "\r%s%s", seen.c_str(), kEraseToEnd);
  std::fflush(out_);
  drawn_ = true;
}

}  // namespace trireme
