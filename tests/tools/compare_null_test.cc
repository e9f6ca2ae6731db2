// How often `trireme compare` is wrong: pairs of runs of which is known how they differ, or that
// they do not. The seeds are fixed, so that what passes once passes always.

#include <cmath>
#include <iostream>
#include <numbers>

#include <gtest/gtest.h>

#include "comparison.h"
#include "support/processes.h"
#include "tools/run_folder.h"
#include "trireme/core/random.h"

namespace trireme::tools {
namespace {

using testing::SampleRow;
using testing::TemporaryFolder;
using testing::write_evaluation;
using testing::write_run;

constexpr int kPairs = 1000;

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
  // `truth`: the true difference of each metric; others are not looked at.
  void add(const Comparison& comparison, const std::map<std::string, double>& truth) {
    bool told = false;
    for (const ComparedMetric& metric : comparison.metrics) {
      told = told || metric.verdict.better != Better::kNeither;
      const auto known = truth.find(metric.name);
      if (known != truth.end() && metric.difference) {
        const Interval& interval = metric.difference->interval95;
        covered_[metric.name] += interval.low <= known->second && known->second <= interval.high;
      }
    }
    told_apart_ += told ? 1 : 0;
    ++pairs_;
  }

  double told_apart() const { return static_cast<double>(told_apart_) / pairs_; }

  // The result of the experiment, for the record.
  void show(const std::string& what) const {
    std::cout << what << ": " << pairs_ << " pairs, " << 100 * told_apart() << " % told apart;";
    for (const auto& [name, count] : covered_) {
      std::cout << " " << name << " covered in " << 100.0 * count / pairs_ << " %";
    }
    std::cout << "\n";
  }

  // A share of 1000 has a standard deviation of 0.7 %.
  void expect_coverage(const std::vector<std::string>& metrics) const {
    for (const std::string& name : metrics) {
      ASSERT_TRUE(covered_.contains(name)) << name;
      const double share = static_cast<double>(covered_.at(name)) / pairs_;
      EXPECT_GE(share, 0.93) << name;
      EXPECT_LE(share, 0.97) << name;
    }
  }

 private:
  int pairs_ = 0;
  int told_apart_ = 0;
  std::map<std::string, int> covered_;
};

class CompareNull : public ::testing::Test {
 protected:
  std::string a() const { return folder_.path() + "/a"; }
  std::string b() const { return folder_.path() + "/b"; }
  Comparison compared() const { return compare_runs(a(), b()); }

  TemporaryFolder folder_;
};

// A classifier that scores a sample by how hard it is and by chance of its own: right where that is
// above 0. `ahead`: how much better it is than others.
std::vector<SampleRow> classified(const std::vector<double>& ease,
                                  double ahead,
                                  RandomStream& random) {
  std::vector<SampleRow> rows;
  for (std::size_t i = 0; i < ease.size(); ++i) {
    const double score = ease[i] + normal(random) + ahead;
    const int target = static_cast<int>(i % 3);
    const int other = (target + 1 + static_cast<int>(random.below(2))) % 3;
    rows.push_back({target, score > 0 ? target : other, 2 - 0.3 * score});
  }
  return rows;
}

Tally classifiers(const std::string& a,
                  const std::string& b,
                  double ahead,
                  const std::map<std::string, double>& truth) {
  const char* metrics = R"("loss":1,"accuracy":1,"precision":1,"recall":1,"f1":1,"f1_micro":1)";
  write_run(a, metrics);
  write_run(b, metrics);
  RandomStream random(7);
  Tally tally;
  for (int pair = 0; pair < kPairs; ++pair) {
    std::vector<double> ease(150);
    for (double& each : ease) {
      each = 1 + normal(random);
    }
    write_evaluation(a, classified(ease, 0, random));
    write_evaluation(b, classified(ease, ahead, random));
    tally.add(compare_runs(a, b), truth);
  }
  return tally;
}

TEST_F(CompareNull, EqualClassifiersAreToldApartInAtMostOneOfTwentyPairs) {
  const std::vector<std::string> names = {"loss", "accuracy", "precision", "recall", "f1"};
  std::map<std::string, double> truth;
  for (const std::string& name : names) {
    truth[name] = 0;
  }
  const Tally tally = classifiers(a(), b(), 0, truth);
  tally.show("equal classifiers");
  EXPECT_LE(tally.told_apart(), 0.05);
  EXPECT_GE(tally.told_apart(), 0.01) << "it never says anything";
  tally.expect_coverage(names);
}

// Scores are normal with variance 2 about 1, and about 1 + ahead; classes are alike, so that
// precision, recall and F1 of each are the accuracy.
TEST_F(CompareNull, IntervalsOfClassifiersThatDifferHoldTheTruth) {
  const double ahead = 0.4;
  const double accuracy = normal_share_below((1 + ahead) / std::numbers::sqrt2) -
                          normal_share_below(1 / std::numbers::sqrt2);
  const Tally tally = classifiers(
      a(), b(), ahead, {{"loss", -0.3 * ahead}, {"accuracy", accuracy}, {"f1", accuracy}});
  tally.show("classifiers that differ");
  tally.expect_coverage({"loss", "accuracy", "f1"});
  EXPECT_GE(tally.told_apart(), 0.5);
}

TEST_F(CompareNull, EqualModelsOfTextAreToldApartInAtMostOneOfTwentyPairs) {
  const char* metrics = R"("loss":1,"accuracy":1,"perplexity":1)";
  const char* more = R"(,"evaluation_fingerprint":"00ab")";
  write_run(a(), metrics, R"("model":"gpt")", more);
  write_run(b(), metrics, R"("model":"gpt")", more);
  RandomStream random(9);
  Tally tally;
  for (int pair = 0; pair < kPairs; ++pair) {
    std::vector<SampleRow> rows_a;
    std::vector<SampleRow> rows_b;
    for (int i = 0; i < 60; ++i) {
      const double ease = normal(random);
      const auto row = [&] {
        const double score = ease + normal(random);
        return SampleRow{64, static_cast<int>(std::clamp(32 + 6 * score, 0.0, 64.0)), 3 - score};
      };
      rows_a.push_back(row());
      rows_b.push_back(row());
    }
    write_evaluation(a(), rows_a, false, "sample,tokens,correct,loss");
    write_evaluation(b(), rows_b, false, "sample,tokens,correct,loss");
    tally.add(compared(), {{"loss", 0}, {"accuracy", 0}, {"perplexity", 0}});
  }
  tally.show("equal models of text");
  EXPECT_LE(tally.told_apart(), 0.05);
  EXPECT_GE(tally.told_apart(), 0.01);
  tally.expect_coverage({"loss", "accuracy", "perplexity"});
}

// Folds of the same samples, hard or easy in both, and folds of different ones.
TEST_F(CompareNull, EqualFoldsAreToldApartInAtMostOneOfTwentyPairs) {
  for (const bool paired : {true, false}) {
    RandomStream random(paired ? 11 : 12);
    Tally tally;
    for (int pair = 0; pair < kPairs; ++pair) {
      std::vector<double> ease(5);
      for (double& each : ease) {
        each = normal(random);
      }
      const auto folds = [&] {
        std::string text;
        for (double& each : ease) {
          each = paired ? each : normal(random);
          const double loss = 1 + 0.1 * each + 0.05 * normal(random);
          const double accuracy = 0.8 - 0.03 * each + 0.02 * normal(random);
          text += (text.empty() ? ",\"folds\":[" : ",") + ("{\"loss\":" + std::to_string(loss)) +
                  ",\"accuracy\":" + std::to_string(accuracy) + "}";
        }
        return text + "]";
      };
      const char* metrics = R"("loss":1,"accuracy":1)";
      write_run(a(), metrics, R"("folds":5,"seed":1)", folds());
      write_run(b(), metrics, paired ? R"("folds":5,"seed":1)" : R"("folds":5,"seed":2)", folds());
      tally.add(compared(), {{"loss", 0}, {"accuracy", 0}});
    }
    tally.show(paired ? "equal folds" : "folds of different samples");
    EXPECT_LE(tally.told_apart(), 0.05) << paired;
    EXPECT_GE(tally.told_apart(), 0.01) << paired;
    tally.expect_coverage({"loss", "accuracy"});
  }
}

// Steps whose times drift: each is 0.7 of the disturbance of the one before it, and something new.
RunLog drifting(double seconds, RandomStream& random) {
  RunLog log;
  double disturbance = 0;
  for (int step = 1; step <= 500; ++step) {
    disturbance = 0.7 * disturbance + 0.05 * normal(random);
    const double took = seconds * std::exp(disturbance);
    for (const auto& [name, value] :
         {std::pair("seconds", took), std::pair("samples_per_second", 32 / took)}) {
      log.training[name].steps.push_back(step);
      log.training[name].values.push_back(value);
    }
  }
  return log;
}

TEST(CompareNullSpeed, IntervalsHoldTheTruthWhereNeighbouringStepsAreAlike) {
  for (const double factor :
       {1.0, 1.1}) {  // that A takes longer, so that B is as many times as fast
    RandomStream random(13);
    int covered = 0;
    int told = 0;
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto compared = compare_speed({drifting(factor, random)}, {drifting(1, random)});
      ASSERT_TRUE(compared);
      const Interval ratio = compared->ratio95();
      covered += ratio.low <= factor && factor <= ratio.high ? 1 : 0;
      told += compared->log_ratio.p_value < 0.05 ? 1 : 0;
    }
    std::cout << "speeds of ratio " << factor << ": " << kPairs << " pairs, "
              << 100.0 * told / kPairs << " % told apart; ratio covered in "
              << 100.0 * covered / kPairs << " %\n";
    EXPECT_GE(covered, 930) << factor;
    EXPECT_LE(covered, 970) << factor;
    EXPECT_TRUE(factor == 1 ? told <= 70 : told >= 900) << factor << ": " << told;
  }
}

}  // namespace
}  // namespace trireme::tools
