#include "trireme/metrics/confusion_matrix.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme {
namespace {

// More classes than this make a table that nobody reads; their scores are still one line each.
constexpr std::int64_t kLargestTable = 30;

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

ClassScores scores(std::int64_t hits, std::int64_t predicted, std::int64_t support) {
  // F1 from the counts, which is the harmonic mean without its division by zero.
  return {
      ratio(hits, predicted), ratio(hits, support), ratio(2 * hits, predicted + support), support};
}

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

std::string score_columns(const ClassScores& of) {
  char text[96];
  std::snprintf(text,
                sizeof(text),
                "  %9.4f  %9.4f  %9.4f  %9lld",
                of.precision,
                of.recall,
                of.f1,
                static_cast<long long>(of.support));
  return text;
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t classes) : classes_(classes) {
  TRIREME_CHECK(classes > 0, "a confusion matrix needs at least one class, found ", classes);
  counts_.resize(static_cast<std::size_t>(classes * classes));
}

void ConfusionMatrix::add(std::int64_t target, std::int64_t prediction, std::int64_t times) {
  TRIREME_CHECK(target >= 0 && target < classes_ && prediction >= 0 && prediction < classes_,
                "expected classes from 0 to ",
                classes_ - 1,
                ", found target ",
                target,
                " and prediction ",
                prediction);
  counts_[static_cast<std::size_t>(target * classes_ + prediction)] += times;
}

std::int64_t ConfusionMatrix::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

double ConfusionMatrix::accuracy() const {
  return micro().recall;
}

ClassScores ConfusionMatrix::of_class(std::int64_t which) const {
  TRIREME_CHECK(which >= 0 && which < classes_,
                "expected a class from 0 to ",
                classes_ - 1,
                ", found ",
                which);
  std::int64_t predicted = 0;
  std::int64_t support = 0;
  for (std::int64_t other = 0; other < classes_; ++other) {
    predicted += counts_[static_cast<std::size_t>(other * classes_ + which)];
    support += counts_[static_cast<std::size_t>(which * classes_ + other)];
  }
  return scores(counts_[static_cast<std::size_t>(which * classes_ + which)], predicted, support);
}

ClassScores ConfusionMatrix::macro() const {
  // Row and column sums in one pass: with thousands of classes, a column at a time would miss the
  // cache at every step.
  const auto classes = static_cast<std::size_t>(classes_);
  std::vector<std::int64_t> predicted(classes);
  std::vector<std::int64_t> support(classes);
  for (std::size_t target = 0; target < classes; ++target) {
    for (std::size_t prediction = 0; prediction < classes; ++prediction) {
      const std::int64_t count = counts_[target * classes + prediction];
      predicted[prediction] += count;
      support[target] += count;
    }
  }
  ClassScores mean;
  std::int64_t occurring = 0;
  for (std::size_t which = 0; which < classes; ++which) {
    if (predicted[which] + support[which] == 0) {
      continue;
    }
    const ClassScores of =
        scores(counts_[which * classes + which], predicted[which], support[which]);
    mean.precision += of.precision;
    mean.recall += of.recall;
    mean.f1 += of.f1;
    mean.support += of.support;
    ++occurring;
  }
  if (occurring > 0) {
    mean.precision /= static_cast<double>(occurring);
    mean.recall /= static_cast<double>(occurring);
    mean.f1 /= static_cast<double>(occurring);
  }
  return mean;
}

ClassScores ConfusionMatrix::micro() const {
  std::int64_t hits = 0;
  for (std::int64_t which = 0; which < classes_; ++which) {
    hits += counts_[static_cast<std::size_t>(which * classes_ + which)];
  }
  const std::int64_t all = total();
  return scores(hits, all, all);
}

std::string ConfusionMatrix::to_string() const {
  const bool with_counts = classes_ <= kLargestTable;
  const std::int64_t largest = *std::max_element(counts_.begin(), counts_.end());
  const std::size_t width =
      std::max(std::to_string(largest).size(), std::to_string(classes_ - 1).size()) + 2;
  const std::size_t name_width = 7;  // "target", "average"

  std::string text = padded("target", name_width);
  for (std::int64_t prediction = 0; with_counts && prediction < classes_; ++prediction) {
    text += padded(std::to_string(prediction), width);
  }
  text += "  precision     recall         F1    samples\n";
  for (std::int64_t target = 0; target < classes_; ++target) {
    text += padded(std::to_string(target), name_width);
    for (std::int64_t prediction = 0; with_counts && prediction < classes_; ++prediction) {
      text += padded(
          std::to_string(counts_[static_cast<std::size_t>(target * classes_ + prediction)]), width);
    }
    text += score_columns(of_class(target)) + "\n";
  }
  text += padded("average", name_width);
  text += std::string(with_counts ? width * static_cast<std::size_t>(classes_) : 0, ' ');
  return text + score_columns(macro()) + "\n";
}

}  // namespace trireme
