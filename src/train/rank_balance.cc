#include "train/rank_balance.h"

#include <algorithm>
#include <cstdio>

#include "train/micro_batch_search.h"
#include "trireme/compress/compressor.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/shard/dealing.h"

namespace trireme::detail {

namespace {

// Whether the settings go with micro-batches that are dealt by measured times.
bool may_follow(const TrainSettings& settings) {
  if (settings.sync != Synchronisation::kExact) {
    return false;
  }
  return settings.compress == "none" || settings.compress == "auto" ||
         !make_compressor(settings.compress)->format().feedback;
}

}  // namespace

RankBalance::RankBalance(const TrainSettings& settings, int world)
    : follows_(settings.balance == Balance::kMeasured),
      may_follow_(may_follow(settings)),
      factor_(settings.straggler_factor),
      speeds_(settings.balance == Balance::kSpeeds
                  ? settings.speeds
                  : std::vector<double>(static_cast<std::size_t>(world), 1)),
      window_seconds_(speeds_.size(), 0),
      window_micro_batches_(speeds_.size(), 0),
      seconds_each_(speeds_.size(), 0) {}

std::vector<std::int64_t> RankBalance::deal(std::int64_t micro_batches) const {
  std::vector<std::int64_t> counts = deal_micro_batches(micro_batches, speeds_);
  if (follows_ && micro_batches >= static_cast<std::int64_t>(counts.size())) {
    // A rank that computes nothing is not measured, and would never get anything again.
    for (std::int64_t& count : counts) {
      if (count == 0) {
        --*std::max_element(counts.begin(), counts.end());
        count = 1;
      }
    }
  }
  return counts;
}

void RankBalance::observe(const std::vector<double>& seconds,
                          const std::vector<std::int64_t>& micro_batches) {
  for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
    window_seconds_[rank] += seconds[rank];
    window_micro_batches_[rank] += micro_batches[rank];
  }
  ++steps_;
  if (steps_ % kWindow != 0) {
    return;
  }
  for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
    if (window_micro_batches_[rank] > 0 && window_seconds_[rank] > 0) {
      seconds_each_[rank] =
          window_seconds_[rank] / static_cast<double>(window_micro_batches_[rank]);
      if (follows_) {
        speeds_[rank] = 1 / seconds_each_[rank];
      }
    }
    window_seconds_[rank] = 0;
    window_micro_batches_[rank] = 0;
  }
}

std::string RankBalance::news() {
  if (steps_ == 0 || steps_ % kWindow != 0 || speeds_.size() < 2) {
    return {};
  }
  std::vector<double> known;
  for (const double each : seconds_each_) {
    if (each > 0) {
      known.push_back(each);
    }
  }
  if (known.size() < 2) {
    return {};
  }
  // The lower middle: of two ranks, the faster one is what the other is measured by.
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::nth_element(known.begin(), middle, known.end());
  const double median = *middle;
  const bool two = known.size() == 2;
  const std::vector<std::int64_t> slow_before = std::move(slow_);
  slow_.clear();
  std::vector<std::int64_t> slow;
  std::string text;
  for (std::size_t rank = 0; rank < seconds_each_.size(); ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    if (seconds_each_[rank] <= factor_ * median) {
      continue;
    }
    slow_.push_back(number);
    if (std::find(slow_before.begin(), slow_before.end(), number) != slow_before.end()) {
      slow.push_back(number);
      char line[96];
      std::snprintf(line,
                    sizeof(line),
                    "%srank %zu takes %.1f times %s (%.1f ms per micro-batch)",
                    text.empty() ? "" : ", ",
                    rank,
                    seconds_each_[rank] / median,
                    two ? "the time of the other" : "the median",
                    seconds_each_[rank] * 1e3);
      text += line;
    }
  }
  if (slow == stragglers_) {
    return {};
  }
  stragglers_ = slow;
  return text.empty()
             ? "no rank is slow any more"
             : concat("slow: ",
                      text,
                      follows_      ? "; it is given fewer micro-batches"
                      : may_follow_ ? "; --balance measured would give it fewer micro-batches"
                                    : "");
}

std::string idle_ranks(std::int64_t ranks,
                       std::int64_t servers,
                       std::int64_t batch,
                       std::int64_t micro_batch,
                       std::int64_t common,
                       bool resumed) {
  const std::int64_t work = batch / micro_batch;
  if (work >= ranks) {
    return {};
  }
  std::int64_t smaller = 0;  // the largest with work for all
  for (const std::int64_t size : divisors_of(common)) {
    smaller = batch / size >= ranks ? size : smaller;
  }
  return concat("{} of {}{}{} nothing to compute: a step of {} is {}; start no more than {} (-n){}",
                {ranks - work,
                 ranks,
                 servers > 0 ? " ranks that are no servers" : " ranks",
                 ranks - work == 1 ? " has" : " have",
                 counted(batch, "sample"),
                 work == 1 ? "one micro-batch" : concat(work, " micro-batches of ", micro_batch),
                 counted(work + servers, "rank"),
                 smaller > 0 ? concat(", or make micro-batches smaller (--micro-batch ",
                                      smaller,
                                      resumed ? " --allow-changes" : "",
                                      ", which changes the result)")
                             : ""});
}

}  // namespace trireme::detail
