#include "train/automatic_sync.h"

#include <algorithm>
#include <cmath>

#include "train/report_lines.h"
#include "trireme/core/concat.h"

namespace trireme::detail {
namespace {

// Of an exact step's time, that it takes to sum gradients: where averaging begins and ends.
constexpr double kBegins = 0.3;
constexpr double kEnds = 0.15;
// Averaging should take no more than this part of the time in which ranks compute.
constexpr double kSpent = 0.25;
// The number of steps changes where it is so many times too small or too large.
constexpr std::int64_t kTooFew = 2;
constexpr std::int64_t kTooMany = 4;

}  // namespace

std::int64_t AutomaticSync::wanted(double work, double exact, double average) const {
  const double share = exact / (exact + work);
  if (!(share >= (now_ == kExact ? kBegins : kEnds))) {
    return kExact;
  }
  std::int64_t every = 2;
  while (every < most_ && static_cast<double>(every) * kSpent * work < average) {
    every *= 2;
  }
  every = std::min(every, most_);
  const bool near = now_ != kExact && every < kTooFew * now_ && now_ < kTooMany * every;
  return near ? now_ : every;
}

std::optional<AutomaticSync::Decision> AutomaticSync::decide(const Measured& measured) {
  const auto steps = static_cast<double>(measured.steps);
  const double work = std::max(1e-9, (measured.seconds - measured.exchange_seconds) / steps);
  if (now_ != kExact && measured.averagings == 0) {
    return std::nullopt;  // nothing was exchanged that could be judged
  }
  double exact = measured.exchange_seconds / steps;
  double average = exact * ratio_;
  if (now_ == kExact) {
    exact_seconds_ = exact;
  } else {
    average = measured.exchange_seconds / static_cast<double>(measured.averagings);
    if (exact_seconds_ > 0) {  // the first time after exact steps, on the same link
      ratio_ = std::clamp(average / exact_seconds_, 0.25, 4.0);
      exact_seconds_ = 0;
    }
    exact = average / ratio_;
  }
  const double waiting = measured.exchange_seconds / measured.seconds;
  conditions_ = format("%.0f %% waiting", 100 * waiting);
  if (measured.sent_bytes > 0 && measured.exchange_seconds > 0) {
    conditions_ +=
        format(", link %.3g MB/s",
               1e-6 * static_cast<double>(measured.sent_bytes) / measured.exchange_seconds);
  }
  const std::int64_t next = wanted(work, exact, average);
  if (next == now_) {
    wanted_before_ = -1;
    return std::nullopt;
  }
  // Both may name another number: what counts is that both want to change in the same way.
  const bool again = wanted_before_ >= 0 && (wanted_before_ == kExact) == (next == kExact) &&
                     (wanted_before_ > now_) == (next > now_);
  if (!again) {
    wanted_before_ = next;
    return std::nullopt;
  }
  set_now(next);
  return Decision{next, conditions_};
}

void AutomaticSync::set_now(std::int64_t every) {
  now_ = every;
  wanted_before_ = -1;
}

std::string sync_words(std::int64_t every) {
  return every == AutomaticSync::kExact ? "exact" : concat("local ", every);
}

}  // namespace trireme::detail
