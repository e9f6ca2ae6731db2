#include "trireme/metrics/confusion_matrix.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>

#include "trireme/core/error.h"
#include "trireme/core/printable.h"
#include "trireme/core/printed.h"

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

// Of a class's name, at the head of a column and at the beginning of a row.
constexpr std::size_t kLongestAcross = 12;
constexpr std::size_t kLongestDown = 24;
// Of all columns of counts together, with names above them.
constexpr std::size_t kWidestCounts = 90;

// Characters of UTF-8, as a terminal counts them (but for those that are two wide).
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t widest(const std::vector<std::string>& texts) {
  std::size_t most = 0;
  for (const std::string& text : texts) {
    most = std::max(most, width_of(text));
  }
  return most;
}

std::string padded(const std::string& text, std::size_t width) {
  const std::size_t taken = width_of(text);
  return std::string(width > taken ? width - taken : 0, ' ') + text;
}

// At most so many characters, the last of them "..." where there are more.
std::string cut_to(const std::string& text, std::size_t longest) {
  if (width_of(text) <= longest) {
    return text;
  }
  std::size_t end = 0;
  for (std::size_t characters = 0; end < text.size(); ++end) {
    characters += width_of(text.substr(end, 1));
    if (characters > longest - 3) {
      break;
    }
  }
  return text.substr(0, end) + "...";
}

std::vector<std::string> cut_names(const std::vector<std::string>& names, std::size_t longest) {
  std::vector<std::string> cut;
  cut.reserve(names.size());
  for (const std::string& name : names) {
    cut.push_back(cut_to(detail::printable(name), longest));
  }
  return cut;
}

std::vector<std::string> numbers_up_to(std::int64_t classes) {
  std::vector<std::string> numbers;
  numbers.reserve(static_cast<std::size_t>(classes));
  for (std::int64_t i = 0; i < classes; ++i) {
    numbers.push_back(std::to_string(i));
  }
  return numbers;
}

bool all_differ(const std::vector<std::string>& texts) {
  return std::set<std::string>(texts.begin(), texts.end()).size() == texts.size();
}

std::string score_columns(const ClassScores& of) {
  return detail::printed("  %7.2f %%  %7.2f %%  %7.2f %%  %9lld",
                         100 * of.precision,
                         100 * of.recall,
                         100 * of.f1,
                         static_cast<long long>(of.support));
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t classes) : classes_(classes) {
  TRIREME_CHECK(classes > 0, "a confusion matrix needs at least one class, found ", classes);
  counts_.resize(static_cast<std::size_t>(classes * classes));
  unpredicted_.resize(static_cast<std::size_t>(classes));
}

void ConfusionMatrix::add(std::int64_t target, std::int64_t prediction, std::int64_t times) {
  TRIREME_CHECK(target >= 0 && target < classes_ && prediction >= kNoClass && prediction < classes_,
                "expected classes from 0 to {}, found target {} and prediction {}",
                {classes_ - 1, target, prediction});
  auto& count = prediction == kNoClass
                    ? unpredicted_[static_cast<std::size_t>(target)]
                    : counts_[static_cast<std::size_t>(target * classes_ + prediction)];
  count += times;
}

bool ConfusionMatrix::lacks_predictions() const {
  return std::ranges::any_of(unpredicted_, [](std::int64_t count) { return count != 0; });
}

std::int64_t ConfusionMatrix::total() const {
  return std::accumulate(unpredicted_.begin(),
                         unpredicted_.end(),
                         std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}));
}

double ConfusionMatrix::accuracy() const {
  return micro().recall;
}

ClassScores ConfusionMatrix::of_class(std::int64_t which) const {
  TRIREME_CHECK(which >= 0 && which < classes_,
                "expected a class from 0 to {}, found {}",
                {classes_ - 1, which});
  std::int64_t predicted = 0;
  std::int64_t support = unpredicted_[static_cast<std::size_t>(which)];
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
  std::vector<std::int64_t> support = unpredicted_;
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

std::string ConfusionMatrix::to_string(const std::vector<std::string>& names) const {
  TRIREME_CHECK(names.empty() || static_cast<std::int64_t>(names.size()) == classes_,
                "expected a name for each of {} classes, found {}",
                {classes_, names.size()});
  const bool with_counts = classes_ <= kLargestTable;
  const std::int64_t largest = *std::ranges::max_element(counts_);
  const std::size_t count_width = std::to_string(largest).size();
  std::vector<std::string> across = cut_names(names, kLongestAcross);
  const bool by_name = with_counts && !names.empty() && all_differ(across) &&
                       (std::max(widest(across), count_width) + 2) * names.size() <= kWidestCounts;
  if (!by_name) {
    across = numbers_up_to(classes_);
  }
  std::vector<std::string> down = cut_names(names, kLongestDown);
  if (names.empty()) {
    down = across;
  } else if (with_counts ? !by_name : !all_differ(down)) {
    for (std::size_t i = 0; i < down.size(); ++i) {
      down[i] = across[i] + " " + down[i];
    }
  }
  const std::size_t width = std::max(count_width, widest(across)) + 2;
  const std::size_t name_width = std::max<std::size_t>(7, widest(down));  // "target", "average"

  std::string text = padded("target", name_width);
  for (std::int64_t prediction = 0; with_counts && prediction < classes_; ++prediction) {
    text += padded(across[static_cast<std::size_t>(prediction)], width);
  }
  text += "  precision     recall         F1    samples\n";
  for (std::int64_t target = 0; target < classes_; ++target) {
    text += padded(down[static_cast<std::size_t>(target)], name_width);
    for (std::int64_t prediction = 0; with_counts && prediction < classes_; ++prediction) {
      text += padded(
          std::to_string(counts_[static_cast<std::size_t>(target * classes_ + prediction)]), width);
    }
    text += score_columns(of_class(target)) + "\n";
  }
  text += padded("average", name_width);
  text += std::string(with_counts ? width * static_cast<std::size_t>(classes_) : 0, ' ');
  text += score_columns(macro()) + "\n";
  if (lacks_predictions()) {
    const auto without = std::accumulate(unpredicted_.begin(), unpredicted_.end(), std::int64_t{0});
    text += std::to_string(without) + " of " + std::to_string(total()) +
            " samples have no prediction, since a score is not a number: they count as wrong\n";
  }
  return text;
}

}  // namespace trireme
