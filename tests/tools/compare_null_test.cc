// How often `trireme compare` is wrong: pairs of runs of which is known how they differ, or that
// they do not. The seeds are fixed, so that what passes once passes always.

#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

#include "judgement.h"
#include "sample_tests.h"
#include "speed.h"
#include "trireme/core/random.h"

namespace trireme::tools {
namespace {

using Truth = std::map<std::string, double>;  // the true B - A; of perplexity, its logarithms'

double normal(RandomStream& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(2 * std::numbers::pi * random.uniform());
}

double normal_share_below(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

// What was said about many pairs.
class Tally {
 public:
  explicit Tally(std::string what) : what_(std::move(what)) {}

  void add(std::vector<ComparedMetric> metrics, const Truth& truth) {
    judge(metrics);
    bool told = false;
    for (const ComparedMetric& metric : metrics) {
      told = told || metric.verdict.better != Better::kNeither;
      if (metric.difference) {
        const Interval& interval = metric.difference->interval95;
        const double expected = truth.at(metric.name);
        ++tested_[metric.name];
        covered_[metric.name] += interval.low <= expected && expected <= interval.high ? 1 : 0;
        // One method for both: the interval leaves out 0 where the p-value is below 5 %, and only
        // there. An interval without ends is of runs that are the same.
        const bool holds_0 = interval.low <= 0 && 0 <= interval.high;
        EXPECT_EQ(holds_0, metric.difference->p_value >= 0.05)
            << what_ << " " << metric.name << " " << interval.low << " " << interval.high;
      }
    }
    told_apart_ += told ? 1 : 0;
    ++pairs_;
  }

  double told_apart() const { return static_cast<double>(told_apart_) / pairs_; }
  int tested(const std::string& metric) const { return tested_.at(metric); }

  // The result of the experiment, for the record.
  void show() const {
    std::cout << what_ << ": " << pairs_ << " pairs, " << 100 * told_apart() << " % told apart;";
    for (const auto& [name, count] : covered_) {
      std::cout << " " << name << " covered in " << 100.0 * count / tested_.at(name) << " % of "
                << tested_.at(name);
    }
    std::cout << "\n";
  }

  // Of equal runs: one pair in twenty, and two standard deviations of such a share for the chance
  // of the experiment.
  void expect_not_told_apart() const {
    EXPECT_LE(told_apart(), 0.05 + 2 * std::sqrt(0.05 * 0.95 / pairs_)) << what_;
  }

  // Counts are discrete: a test on a few of them cannot reach 5 %, and its intervals hold the truth
  // in more than 95 % of the cases. For all others `most` is 97 %.
  void expect_coverage(const std::vector<std::string>& metrics, double most = 0.97) const {
    for (const std::string& name : metrics) {
      ASSERT_TRUE(covered_.contains(name)) << what_ << " " << name;
      const double share = static_cast<double>(covered_.at(name)) / tested_.at(name);
      EXPECT_GE(share, 0.93) << what_ << " " << name;
      EXPECT_LE(share, most) << what_ << " " << name;
    }
  }

 private:
  std::string what_;
  int pairs_ = 0;
  int told_apart_ = 0;
  std::map<std::string, int> covered_;
  std::map<std::string, int> tested_;
};

std::vector<ComparedMetric> compared(const std::vector<std::string>& names,
                                     const Evaluation& a,
                                     const Evaluation& b,
                                     bool classes) {
  std::vector<ComparedMetric> metrics;
  for (const std::string& name : names) {
    metrics.push_back(compared_metric(name, compare_samples(name, a, b, classes).value()));
  }
  return metrics;
}

Truth nothing(const std::vector<std::string>& names) {
  Truth truth;
  for (const std::string& name : names) {
    truth[name] = 0;
  }
  return truth;
}

void add_row(Evaluation& run, double target, double prediction, double loss) {
  run.samples.push_back(std::ssize(run.samples));
  run.targets.push_back(target);
  run.predictions.push_back(prediction);
  run.losses.push_back(loss);
}

const std::vector<std::string> kOfClasses = {
    "loss", "accuracy", "precision", "recall", "f1", "f1_micro"};

// A classifier scores a sample by how hard it is and by chance of its own: right where that is
// above 0. `ahead`: how much better B is. Classes have these shares of the samples.
Tally classifiers(const std::string& what,
                  const std::vector<double>& shares,
                  int samples,
                  int pairs,
                  double ahead,
                  const Truth& truth) {
  Tally tally(what);
  RandomStream random(7);
  for (int pair = 0; pair < pairs; ++pair) {
    std::array<Evaluation, 2> runs;
    for (int i = 0; i < samples; ++i) {
      const double ease = 1 + normal(random);
      const double at = random.uniform();
      int target = 0;
      for (double below = shares[0]; at >= below && target + 1 < std::ssize(shares);) {
        below += shares[static_cast<std::size_t>(++target)];
      }
      for (const std::size_t which : {0, 1}) {
        const double score = ease + normal(random) + (which == 1 ? ahead : 0);
        const int others = static_cast<int>(shares.size()) - 1;
        const int other = (target + 1 + static_cast<int>(random.below(others))) % (others + 1);
        add_row(runs[which], target, score > 0 ? target : other, 2 - 0.3 * score);
      }
    }
    tally.add(compared(kOfClasses, runs[0], runs[1], true), truth);
  }
  tally.show();
  return tally;
}

// Of classes that are as many, precision, recall and F1 of each are the share of hits; of two that
// are not, by the shares of hits and misses among them. Scores are normal about 1 with variance 2.
Truth scores_of(const std::vector<double>& shares, double ahead) {
  const double hit = normal_share_below((1 + ahead) / std::numbers::sqrt2);
  Truth truth = {{"loss", -0.3 * ahead}, {"accuracy", hit}, {"f1_micro", hit}, {"recall", hit}};
  for (const double share : shares) {
    const double wrong = (1 - share) * (1 - hit) / (static_cast<double>(shares.size()) - 1);
    const double predicted = share * hit + wrong;
    truth["precision"] += share * hit / predicted / static_cast<double>(shares.size());
    truth["f1"] += 2 * share * hit / (predicted + share) / static_cast<double>(shares.size());
  }
  return truth;
}

Truth scores_between(const std::vector<double>& shares, double ahead) {
  Truth truth = scores_of(shares, ahead);
  for (const auto& [name, value] : scores_of(shares, 0)) {
    truth[name] -= value;
  }
  truth["loss"] = -0.3 * ahead;
  return truth;
}

TEST(CompareNull, Classifiers) {
  const std::vector<double> alike = {1.0 / 3, 1.0 / 3, 1.0 / 3};
  const Tally equal = classifiers("equal classifiers", alike, 150, 1000, 0, nothing(kOfClasses));
  equal.expect_not_told_apart();
  equal.expect_coverage({"loss", "precision", "recall", "f1"});
  equal.expect_coverage({"accuracy"}, 0.985);  // a count of hits
  EXPECT_GE(equal.told_apart(), 0.01) << "it never says anything";
  const Tally better =
      classifiers("classifiers that differ", alike, 150, 600, 0.4, scores_between(alike, 0.4));
  better.expect_coverage({"loss", "accuracy", "precision", "recall", "f1"});
  EXPECT_GE(better.told_apart(), 0.5);
}

// One class has few samples; in some pairs too few of them for precision, recall and F1.
TEST(CompareNull, ClassifiersOfUnequalClasses) {
  const std::vector<double> unequal = {0.86, 0.14};
  const Tally equal =
      classifiers("equal, unequal classes", unequal, 180, 600, 0, nothing(kOfClasses));
  equal.expect_not_told_apart();
  equal.expect_coverage({"loss", "precision", "recall", "f1"}, 0.98);
  const Tally better = classifiers(
      "unequal classes that differ", unequal, 180, 600, 0.4, scores_between(unequal, 0.4));
  better.expect_coverage({"loss", "accuracy", "precision", "recall", "f1"}, 0.98);
  EXPECT_GE(better.told_apart(), 0.5);
  EXPECT_GT(better.tested("recall"), 300);
  EXPECT_LT(better.tested("recall"), 600);
  EXPECT_EQ(better.tested("accuracy"), 600);
}

TEST(CompareNull, Texts) {
  const std::vector<std::string> names = {"loss", "accuracy", "perplexity"};
  for (const double less : {0.0, 0.3}) {
    Tally tally(less == 0 ? "equal models of text" : "models of text that differ");
    RandomStream random(9);
    constexpr int kPairs = 3000;
    for (int pair = 0; pair < kPairs; ++pair) {
      std::array<Evaluation, 2> runs;
      for (Evaluation& run : runs) {
        run.text = true;
      }
      for (int i = 0; i < 60; ++i) {
        const double ease = normal(random);
        for (const std::size_t which : {0, 1}) {
          const double score = ease + 0.7 * normal(random);
          add_row(runs[which],
                  64,
                  std::clamp(std::round(32 + 6 * score), 0.0, 64.0),
                  3 - score - (which == 1 ? less : 0));
        }
      }
      tally.add(compared(names, runs[0], runs[1], false),
                {{"loss", -less}, {"perplexity", -less}, {"accuracy", 0}});
    }
    tally.show();
    tally.expect_coverage(names);
    if (less == 0) {
      tally.expect_not_told_apart();
      EXPECT_GE(tally.told_apart(), 0.02);
    } else {
      EXPECT_GE(tally.told_apart(), 0.5);
    }
  }
}

// Errors of A are normal with variance 1.25, those of B `larger` times as large.
TEST(CompareNull, Regressions) {
  const std::vector<std::string> names = {"loss", "mae", "mse", "rmse"};
  for (const int samples : {30, 100}) {
    for (const double larger : {1.0, 1.2}) {
      Tally tally(std::to_string(samples) + " quantities, errors times " + std::to_string(larger));
      RandomStream random(10);
      const double root = std::sqrt(1.25);
      const Truth truth = {{"loss", 1.25 * (larger * larger - 1)},
                           {"mse", 1.25 * (larger * larger - 1)},
                           {"rmse", root * (larger - 1)},
                           {"mae", root * std::sqrt(2 / std::numbers::pi) * (larger - 1)}};
      for (int pair = 0; pair < 120'000 / samples; ++pair) {
        std::array<Evaluation, 2> runs;
        for (int i = 0; i < samples; ++i) {
          const double target = 10 + 3 * normal(random);
          const double common = normal(random);
          for (const std::size_t which : {0, 1}) {
            const double error = (common + 0.5 * normal(random)) * (which == 1 ? larger : 1);
            add_row(runs[which], target, target + error, error * error);
          }
        }
        tally.add(compared(names, runs[0], runs[1], false), truth);
      }
      tally.show();
      tally.expect_coverage(names);
      if (larger == 1) {
        tally.expect_not_told_apart();
      }
    }
  }
}

// So many right of so many samples in each fold.
double share_right(double accuracy, int samples, RandomStream& random) {
  int right = 0;
  for (int i = 0; i < samples; ++i) {
    right += random.uniform() < accuracy ? 1 : 0;
  }
  return static_cast<double>(right) / samples;
}

// Few folds, with accuracies that are multiples of 1 / samples, of which many are the same.
TEST(CompareNull, FoldsOfFewSamples) {
  for (const bool paired : {true, false}) {
    for (const int folds : {2, 3, 4, 5}) {
      for (const auto& [samples, accuracy] : {std::pair(20, 0.9), std::pair(100, 0.97)}) {
        for (const double more : {0.0, 0.02}) {
          Tally tally(std::to_string(folds) + (paired ? " folds of " : " unpaired folds of ") +
                      std::to_string(samples) + ", accuracy + " + std::to_string(more));
          RandomStream random(11);
          for (int pair = 0; pair < 2000; ++pair) {
            std::vector<double> a;
            std::vector<double> b;
            for (int fold = 0; fold < folds; ++fold) {
              a.push_back(share_right(accuracy, samples, random));
              b.push_back(share_right(accuracy + more, samples, random));
            }
            tally.add({compared_metric("accuracy", compare_fold_values("accuracy", a, b, paired))},
                      {{"accuracy", more}});
          }
          tally.show();
          tally.expect_coverage({"accuracy"}, 1);  // of few and small counts
          if (more == 0) {
            tally.expect_not_told_apart();
          }
        }
      }
    }
  }
}

// Folds of the same samples, hard or easy in both, and folds of different ones. Welch's test of two
// folds each says too little: its degrees of freedom come from two estimates of a spread.
TEST(CompareNull, Folds) {
  for (const bool paired : {true, false}) {
    for (const int folds : {2, 3, 5}) {
      for (const double less : {0.0, 0.2}) {
        Tally tally(std::to_string(folds) + (paired ? " folds" : " unpaired folds") + ", loss - " +
                    std::to_string(less));
        RandomStream random(12);
        for (int pair = 0; pair < 4000; ++pair) {
          std::vector<double> a;
          std::vector<double> b;
          for (int fold = 0; fold < folds; ++fold) {
            const double ease = normal(random);
            a.push_back(1 + 0.1 * ease + 0.05 * normal(random));
            b.push_back(1 + 0.1 * (paired ? ease : normal(random)) + 0.05 * normal(random) - less);
          }
          tally.add({compared_metric("loss", compare_fold_values("loss", a, b, paired))},
                    {{"loss", -less}});
        }
        tally.show();
        tally.expect_coverage({"loss"}, paired || folds == 5 ? 0.97 : 0.99);
        if (less == 0) {
          tally.expect_not_told_apart();
        }
      }
    }
  }
}

// Steps whose times drift: each has a share of the disturbance of the one before it, and something
// new.
RunLog drifting(double seconds, double kept, RandomStream& random) {
  RunLog log;
  double disturbance = 0.05 * normal(random) / std::sqrt(1 - kept * kept);
  for (int step = 1; step <= 500; ++step) {
    disturbance = kept * disturbance + 0.05 * normal(random);
    const double took = seconds * std::exp(disturbance);
    for (const auto& [name, value] :
         {std::pair("seconds", took), std::pair("samples_per_second", 32 / took)}) {
      log.training[name].steps.push_back(step);
      log.training[name].values.push_back(value);
    }
  }
  return log;
}

TEST(CompareNull, Speeds) {
  constexpr int kPairs = 1500;
  for (const double kept : {0.0, 0.7, 0.9, 0.97}) {
    for (const double factor : {1.0, 1.1}) {  // that A takes longer: B is as many times as fast
      RandomStream random(13);
      int tested = 0;
      int covered = 0;
      int told = 0;
      for (int pair = 0; pair < kPairs; ++pair) {
        const auto compared =
            compare_speed({drifting(factor, kept, random)}, {drifting(1, kept, random)});
        ASSERT_TRUE(compared);
        const Interval ratio = compared->ratio95();
        EXPECT_EQ(std::isfinite(ratio.high), compared->why_untested.empty());
        if (!compared->why_untested.empty()) {
          EXPECT_EQ(compared->log_ratio.p_value, 1);
          continue;
        }
        ++tested;
        covered += ratio.low <= factor && factor <= ratio.high ? 1 : 0;
        told += compared->log_ratio.p_value < 0.05 ? 1 : 0;
      }
      std::cout << "speeds of ratio " << factor << ", neighbours alike by " << kept << ": "
                << kPairs << " pairs, " << tested << " tested, " << 100.0 * told / kPairs
                << " % told apart; ratio covered in " << 100.0 * covered / std::max(1, tested)
                << " %\n";
      if (factor == 1) {
        EXPECT_LE(told, kPairs * 0.05 + 2 * std::sqrt(kPairs * 0.05 * 0.95)) << kept;
      }
      if (kept < 0.9) {
        EXPECT_GE(tested, kPairs * 0.95) << kept;
        EXPECT_GE(covered, 0.93 * tested) << kept;
        EXPECT_LE(covered, 0.97 * tested) << kept;
        EXPECT_TRUE(factor == 1 || told > 0.9 * kPairs) << kept << ": " << told;
      } else if (kept > 0.95) {
        EXPECT_LE(tested, kPairs * 0.02) << "500 steps are about seven independent ones";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::tools
