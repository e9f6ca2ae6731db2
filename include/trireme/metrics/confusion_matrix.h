#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct ClassScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
  std::int64_t support = 0;  // samples of the class
};

// How often each class was taken for which: counts only, so that the matrices of several ranks add
// up exactly, in any order. Scores of a class that was never predicted (precision) or never there
// (recall) are 0, as in scikit-learn.
class ConfusionMatrix {
 public:
  // In place of a prediction: the sample was taken for no class, as where scores are no numbers. It
  // is wrong whatever its class.
  static constexpr std::int64_t kNoClass = -1;

  explicit ConfusionMatrix(std::int64_t classes);

  void add(std::int64_t target, std::int64_t prediction, std::int64_t times = 1);
  // [target * classes + prediction]; may be written, to add up the ranks' matrices.
  std::vector<std::int64_t>& counts() { return counts_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }
  // [target]: the samples that were taken for no class, which are not among the counts.
  std::vector<std::int64_t>& unpredicted() { return unpredicted_; }
  const std::vector<std::int64_t>& unpredicted() const { return unpredicted_; }
  bool lacks_predictions() const;
  std::int64_t classes() const { return classes_; }
  std::int64_t total() const;  // with those without a prediction

  double accuracy() const;
  ClassScores of_class(std::int64_t which) const;
  // Averages over the classes that occur among the targets or predictions.
  ClassScores macro() const;
  // From the sums over classes; with one label per sample, all three are the accuracy.
  ClassScores micro() const;
  // A table: targets down, predictions across, and each class's scores in percent; of more than 30
  // classes the scores alone. Classes are shown by `names`, where given (one for each), and by
  // number otherwise; columns whose names would make the table too wide have numbers, which the
  // rows then have, too. Samples without a prediction are a line below it.
  std::string to_string(const std::vector<std::string>& names = {}) const;

 private:
  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> unpredicted_;
};

}  // namespace trireme
