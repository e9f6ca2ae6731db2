#include <cmath>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"
#include "tools/run_folder.h"
#include "trireme/core/random.h"
#include "trireme/metrics/confusion_matrix.h"
#include "trireme/metrics/significance.h"

namespace trireme::compare_command_test {
namespace {

using testing::Finished;
using testing::SampleRow;
using testing::write_evaluation;
using testing::write_file;
using testing::write_log;
using testing::write_run;
using Json = nlohmann::json;

class CompareCommand : public ::testing::Test {
 protected:
  std::string a() const { return folder_.path() + "/a"; }
  std::string b() const { return folder_.path() + "/b"; }

  // Runs the program; `json_` is then what it wrote for programs.
  Finished compare() {
    const std::string path = folder_.path() + "/out.json";
    Finished finished =
        testing::run_program({testing::trireme_binary(), "compare", a(), b(), "--json", path});
    json_ = Json::parse(testing::read_file(path), nullptr, false);
    return finished;
  }

  const Json& metric(const std::string& name) const {
    for (const Json& entry : json_.at("metrics")) {
      if (entry.at("name") == name) {
        return entry;
      }
    }
    ADD_FAILURE() << "no metric " << name << " in " << json_.dump(1);
    static const Json kNothing = Json::object();
    return kNothing;
  }

  testing::TemporaryFolder folder_;
  Json json_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Rows of four classes of which this share is right; the hard ones are the same for every share.
std::vector<SampleRow> rows_with(double right, std::uint64_t seed) {
  RandomStream easy(1);
  RandomStream own(seed);
  std::vector<SampleRow> rows;
  for (int i = 0; i < 1000; ++i) {
    const int target = static_cast<int>(easy.below(4));
    const bool hit = easy.uniform() < right;
    rows.push_back({target,
                    hit ? target : (target + 1 + static_cast<int>(own.below(3))) % 4,
                    (hit ? 0.1 : 2.0) + 0.05 * own.uniform()});
  }
  return rows;
}

const char* const kClassMetrics =
    R"("loss":0.5,"accuracy":0.8,"precision":0.8,"recall":0.8,"f1":0.8)";

// An mlp has no heads, whatever its record says of them, and what one start was allowed to change
// is no setting of the run.
TEST_F(CompareCommand, WhatAModelDoesNotUseIsNoDifference) {
  write_run(a(),
            R"("loss":0.5)",
            R"("model":"mlp","data":"digits","heads":2,"lr":0.1,"allow_changes":true)");
  write_run(b(),
            R"("loss":0.5)",
            R"("model":"mlp","data":"digits","heads":4,"lr":0.2,"allow_changes":false)");
  const Finished finished = compare();
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(json_.at("settings"), Json::parse(R"([{"name":"lr","a":"0.1","b":"0.2"}])"));
}

// Modes side by side: what went between the ranks, and what it lost.
TEST_F(CompareCommand, SetsWhatWentBetweenRanksSideBySide) {
  const auto add = [](const std::string& folder, const std::string& more) {
    write_run(folder, R"("loss":0.5)", R"("model":"mlp","data":"digits")", "," + more);
  };
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":0.6)");
  EXPECT_FALSE(has(compare().out, "What went between the ranks"));
  add(a(), R"("averaging":{"averagings":6,"sent_bytes":12000000,"seconds":1.5})");
  add(b(),
      R"("stale":{"staleness":[10,20,10,0],"held_up_seconds":[0.5,2.25]},
          "compression":{"sent_bytes":1000000,"saved_bytes":3000000,"seconds":0.25,
                         "check":{"step":4,"relative_error":0.125,"cosine":0.99,"descent":0.98}})");
  const Finished done = compare();
  EXPECT_EQ(done.code, 0) << done.err;
  // A row's cells, without what is between them.
  const auto row = [&](const std::string& title) {
    const std::string line = done.out.substr(done.out.find(title));
    std::istringstream words(line.substr(title.size(), line.find('\n') - title.size()));
    std::string text;
    for (std::string word; words >> word;) {
      text += word + " ";
    }
    return text;
  };
  EXPECT_EQ(row("averagings of replicas"), "6 - ");
  EXPECT_EQ(row("time for them"), "1.50 s - ");
  EXPECT_EQ(row("updates that gradients are late, mean"), "- 1.00 ");
  EXPECT_EQ(row("updates that gradients are late, most"), "- 2 ");
  EXPECT_EQ(row("ranks waited for the one most behind"), "- 2.25 s ");
  EXPECT_EQ(row("error of the compressed sum"), "- 12.50 % ");
  EXPECT_EQ(row("its descent for that of the exact one"), "- 98.0 % ");
  EXPECT_EQ(json_.at("a").at("exchange").at("averaging_bytes"), 12000000);
  EXPECT_EQ(json_.at("b").at("exchange").at("staleness"), 1.0);
}

TEST_F(CompareCommand, TellsTheBetterOfTwoClassifiersAndHowSureItIs) {
  const auto rows_a = rows_with(0.80, 2);
  const auto rows_b = rows_with(0.85, 3);
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics, R"("model":"mlp","data":"digits","zero":3)");
  write_evaluation(a(), rows_a);
  write_evaluation(b(), rows_b, true);  // the order of the lines does not matter
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;

  std::vector<std::uint8_t> hits_a;
  std::vector<std::uint8_t> hits_b;
  std::vector<double> losses_a;
  std::vector<double> losses_b;
  ConfusionMatrix matrix(4);
  for (std::size_t i = 0; i < rows_a.size(); ++i) {
    hits_a.push_back(rows_a[i].target == rows_a[i].prediction ? 1 : 0);
    hits_b.push_back(rows_b[i].target == rows_b[i].prediction ? 1 : 0);
    losses_a.push_back(rows_a[i].loss);
    losses_b.push_back(rows_b[i].loss);
    matrix.add(rows_b[i].target, rows_b[i].prediction);
  }
  const Difference accuracy = mcnemar_test(hits_a, hits_b);
  EXPECT_EQ(json_.at("basis"), "samples");
  EXPECT_NEAR(metric("accuracy").at("difference"), accuracy.mean, 1e-12);
  EXPECT_NEAR(metric("accuracy").at("p_value"), accuracy.p_value, 1e-12);
  EXPECT_EQ(metric("accuracy").at("better"), "b");
  const Difference loss = paired_t_test(losses_a, losses_b);
  EXPECT_NEAR(metric("loss").at("difference"), loss.mean, 1e-6);  // six digits in the file
  EXPECT_NEAR(metric("loss").at("interval95").at(0), loss.interval95.low, 1e-6);
  EXPECT_EQ(metric("loss").at("better"), "b");  // lower
  EXPECT_NEAR(metric("f1").at("b"), matrix.macro().f1, 1e-12);
  EXPECT_NEAR(metric("recall").at("b"), matrix.macro().recall, 1e-12);
  EXPECT_NEAR(metric("precision").at("b"), matrix.macro().precision, 1e-12);
  EXPECT_EQ(metric("f1").at("test"), "permutation test");
  EXPECT_EQ(metric("f1").at("better"), "b");
  // None of 1000 permutations: the p-value is below 1/1001, and Holm's below a multiple of it.
  EXPECT_NEAR(metric("f1").at("p_value"), 1.0 / 1001, 1e-12);
  EXPECT_EQ(metric("f1").at("p_is_bound"), true);
  EXPECT_FALSE(metric("accuracy").contains("p_is_bound"));
  const std::size_t f1 = done.out.find("  f1 ");
  const std::string row = done.out.substr(f1, done.out.find('\n', f1) - f1);
  EXPECT_TRUE(has(row, "  < 0.001 ")) << row;
  EXPECT_TRUE(has(row, "  < 0.003 ")) << row;

  EXPECT_TRUE(has(done.out, "1000 evaluated samples, the same in both")) << done.out;
  EXPECT_TRUE(has(done.out, "B is better: accuracy is ")) << done.out;
  EXPECT_TRUE(has(done.out, "points higher (95 % interval ")) << done.out;
  EXPECT_TRUE(has(done.out,
                  "chance alone would give a difference this large in less than 1 of 1000 "
                  "comparisons"))
      << done.out;
  EXPECT_TRUE(has(done.out, "B is better: loss is ")) << done.out;
  EXPECT_EQ(json_.at("settings").size(), 1u);
  EXPECT_EQ(json_.at("settings")[0].at("name"), "zero");
  EXPECT_EQ(json_.at("settings")[0].at("a"), "-");
}

// Nothing that varies tells how far apart the runs may be on other samples.
TEST_F(CompareCommand, RunsThatDifferInNoSampleHaveNoIntervals) {
  for (const std::string& run : {a(), b()}) {
    write_run(run, std::string(kClassMetrics) + R"(,"f1_micro":0.8)");
    write_evaluation(run, rows_with(0.80, 2));
  }
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  for (const Json& metric : json_.at("metrics")) {
    EXPECT_EQ(metric.at("interval95"), Json({0, 0})) << metric;
    EXPECT_EQ(metric.at("p_value"), 1) << metric;
  }
  EXPECT_TRUE(has(done.out, "no difference: accuracy is the same in both")) << done.out;
  EXPECT_FALSE(has(done.out, "0 to ")) << done.out;
}

// With one label per sample every miss is one false positive and one false negative, so that
// F1 = 2 TP / (2 TP + FP + FN) over all classes is the share of hits.
TEST_F(CompareCommand, TheMicroAverageOfF1IsAShareThatIsTested) {
  const auto rows_a = rows_with(0.80, 2);
  const auto rows_b = rows_with(0.85, 3);
  const std::string metrics = std::string(kClassMetrics) + R"(,"f1_micro":0.8)";
  write_run(a(), metrics);
  write_run(b(), metrics);
  write_evaluation(a(), rows_a);
  write_evaluation(b(), rows_b);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  const double hits =
      static_cast<double>(std::count_if(rows_a.begin(), rows_a.end(), [](const SampleRow& row) {
        return row.target == row.prediction;
      }));
  EXPECT_NEAR(metric("f1_micro").at("a"), hits / 1000, 1e-12);
  EXPECT_EQ(metric("f1_micro").at("p_value"), metric("accuracy").at("p_value"));
  EXPECT_EQ(metric("f1_micro").at("p_adjusted"), metric("accuracy").at("p_adjusted"));
  EXPECT_EQ(metric("f1_micro").at("better"), "b");
  EXPECT_FALSE(has(done.out, "better: f1_micro")) << done.out;
  char percent[32];
  std::snprintf(percent, sizeof(percent), "%.2f %%", hits / 10);
  const std::size_t row = done.out.find("  f1_micro ");
  ASSERT_NE(row, std::string::npos) << done.out;
  EXPECT_TRUE(has(done.out.substr(row, done.out.find('\n', row) - row), percent)) << done.out;
  // One question, in two names.
  EXPECT_TRUE(
      has(done.out,
          "f1_micro is the accuracy where each sample has one label, so what is said of accuracy "
          "holds for it, and it is no further test\n"))
      << done.out;
  EXPECT_TRUE(has(done.out, "p adjusted for 5 metrics: < 0.001")) << done.out;
}

TEST_F(CompareCommand, TheOtherWayRoundSaysTheSame) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  write_evaluation(a(), rows_with(0.85, 3));
  write_evaluation(b(), rows_with(0.80, 2));
  const Finished done = compare();
  EXPECT_EQ(metric("accuracy").at("better"), "a");
  EXPECT_EQ(metric("loss").at("better"), "a");
  EXPECT_TRUE(has(done.out, "A is better: accuracy is ")) << done.out;
  EXPECT_TRUE(has(done.out, "Settings: the same in both")) << done.out;
}

TEST_F(CompareCommand, FewSamplesTellNothing) {
  const std::string metrics = std::string(kClassMetrics) + R"(,"f1_micro":0.8)";
  write_run(a(), metrics);
  write_run(b(), metrics);
  for (const std::size_t samples : {1u, 2u, 5u, 29u}) {
    // A is wrong about the first four only, which no exact test would hold against it.
    std::vector<SampleRow> rows_a;
    std::vector<SampleRow> rows_b;
    for (std::size_t i = 0; i < samples; ++i) {
      const int target = static_cast<int>(i % 2);
      rows_a.push_back({target, i < 4 ? 1 - target : target, 0.5});
      rows_b.push_back({target, target, 0.5});
    }
    write_evaluation(a(), rows_a);
    write_evaluation(b(), rows_b);
    const Finished done = compare();
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(json_.at("basis"), "samples");
    for (const char* name : {"accuracy", "f1_micro", "f1", "precision", "recall"}) {
      EXPECT_TRUE(metric(name).at("better").is_null()) << samples << " " << name;
    }
    EXPECT_FALSE(metric("f1").contains("p_value")) << samples;
    EXPECT_FALSE(metric("f1").contains("test")) << samples;
    EXPECT_NEAR(metric("f1").at("b"), 1, 1e-12);
    EXPECT_TRUE(has(done.out,
                    "f1 was not tested: its test takes at least 30 samples, found " +
                        std::to_string(samples) + "\n"))
        << done.out;
    EXPECT_FALSE(has(done.out, "permutation")) << done.out;
    EXPECT_FALSE(has(done.out, "inf")) << done.out;
  }
  // Of 29 samples four are only right in B: 2 / 2^4. The loss, which is the same in all, is the
  // only other test.
  EXPECT_NEAR(metric("accuracy").at("p_value"), 0.125, 1e-12);
  EXPECT_NEAR(metric("accuracy").at("p_adjusted"), 0.25, 1e-12);
}

// A mean over five models is not one over four that were trained on less.
TEST_F(CompareCommand, DifferentNumbersOfFoldsAreNotCompared) {
  write_run(a(),
            R"("accuracy":0.8)",
            R"("data":"digits","folds":3)",
            R"(,"folds":[{"accuracy":0.7},{"accuracy":0.8},{"accuracy":0.9}])");
  write_run(b(),
            R"("accuracy":0.85)",
            R"("data":"digits","folds":2)",
            R"(,"folds":[{"accuracy":0.8},{"accuracy":0.9}])");
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "nothing");
  EXPECT_EQ(metric("accuracy").at("a"), 0.8);
  EXPECT_FALSE(metric("accuracy").contains("p_value"));
  EXPECT_TRUE(has(done.out, "Not compared: results (different folds: 3 in A and 2 in B"))
      << done.out;
  EXPECT_TRUE(has(done.out, "train both with the same --folds")) << done.out;
  EXPECT_FALSE(has(done.out, "only one number per run")) << done.out;
}

TEST_F(CompareCommand, SaysWhatChanceIsOfRunsThatDifferInTheirSeed) {
  const auto settings = [](int seed) {
    return R"("model":"mlp","data":"digits","run":"r)" + std::to_string(seed) + R"(","seed":)" +
           std::to_string(seed);
  };
  write_run(a(), kClassMetrics, settings(1));
  write_run(b(), kClassMetrics, settings(2));
  Finished done = compare();
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "differ in their seed, which decides both how they train and"))
      << done.out;
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.81, 3));
  done = compare();
  EXPECT_EQ(json_.at("basis"), "samples");
  EXPECT_TRUE(
      has(done.out, "Note: the runs differ in their seed only; \"chance\" is that of the samples"))
      << done.out;
  write_run(b(), kClassMetrics, settings(2) + R"(,"lr":0.5)");
  EXPECT_FALSE(has(compare().out, "seed only"));
}

TEST_F(CompareCommand, DoesNotFindADifferenceThatIsNotThere) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  auto rows = rows_with(0.8, 2);
  write_evaluation(a(), rows);
  // Two samples change sides, one each way.
  const auto flip = [&](bool hit) {
    for (SampleRow& row : rows) {
      if ((row.target == row.prediction) == hit) {
        row.prediction = hit ? (row.target + 1) % 4 : row.target;
        return;
      }
    }
  };
  flip(true);
  write_evaluation(b(), rows);
  Finished done = compare();
  EXPECT_TRUE(metric("accuracy").at("better").is_null());
  EXPECT_TRUE(has(done.out, "no clear difference: accuracy of B came out 0.10 points lower"))
      << done.out;
  EXPECT_TRUE(has(done.out, "about 100 of 100 comparisons")) << done.out;
  write_evaluation(b(), rows_with(0.8, 2));
  done = compare();
  EXPECT_TRUE(has(done.out, "no difference: accuracy is the same in both")) << done.out;
}

TEST_F(CompareCommand, FoldsAreComparedInPairs) {
  const std::vector<double> of_a = {0.80, 0.82, 0.78, 0.85, 0.79};
  std::vector<double> of_b = of_a;
  const auto folds_of = [](const std::vector<double>& values) {
    Json folds = Json::array();
    for (const double value : values) {
      folds.push_back({{"accuracy", value}, {"loss", 1 - value}});
    }
    return ",\"folds\":" + folds.dump();
  };
  for (std::size_t i = 0; i < of_b.size(); ++i) {
    of_b[i] += 0.01 + 0.001 * static_cast<double>(i);
  }
  write_run(a(), kClassMetrics, R"("folds":5)", folds_of(of_a));
  write_run(b(), kClassMetrics, R"("folds":5)", folds_of(of_b));
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  const Difference expected = paired_t_test(of_a, of_b);
  EXPECT_EQ(json_.at("basis"), "folds");
  EXPECT_NEAR(metric("accuracy").at("p_value"), expected.p_value, 1e-12);
  EXPECT_NEAR(metric("accuracy").at("interval95").at(1), expected.interval95.high, 1e-12);
  EXPECT_NEAR(metric("accuracy").at("a"), 0.808, 1e-12);
  EXPECT_EQ(metric("loss").at("better"), "b");
  EXPECT_TRUE(has(done.out, "5 folds, the same in both")) << done.out;

  // Folds that were cut elsewhere are no pairs.
  write_evaluation(a() + "/fold-1", {{0, 0, 0.5}, {1, 1, 0.5}});
  write_evaluation(b() + "/fold-1", {{1, 0, 0.5}, {1, 1, 0.5}});
  compare();
  const double unpaired = welch_t_test(of_a, of_b).p_value;
  EXPECT_NEAR(metric("accuracy").at("p_value"), unpaired, 1e-12);
  EXPECT_EQ(json_.at("notes").size(), 1u);
  // The same targets, of other samples.
  write_evaluation(b() + "/fold-1", {{0, 0, 0.5}, {1, 1, 0.5}});
  compare();
  EXPECT_NEAR(metric("accuracy").at("p_value"), expected.p_value, 1e-12);
  write_file(a() + "/fold-1/summary.json", R"({"evaluation_fingerprint":"00ab"})");
  write_file(b() + "/fold-1/summary.json", R"({"evaluation_fingerprint":"00ac"})");
  compare();
  EXPECT_NEAR(metric("accuracy").at("p_value"), unpaired, 1e-12);
  // Nothing is known of the samples, but that they were chosen with another seed.
  std::filesystem::remove_all(a() + "/fold-1");
  write_run(a(), kClassMetrics, R"("folds":5,"seed":1)", folds_of(of_a));
  write_run(b(), kClassMetrics, R"("folds":5,"seed":2)", folds_of(of_b));
  compare();
  EXPECT_NEAR(metric("accuracy").at("p_value"), unpaired, 1e-12);
}

TEST_F(CompareCommand, TextIsComparedWindowByWindow) {
  const auto metrics = R"("loss":1.5,"accuracy":0.5,"perplexity":4.5)";
  const char* settings = R"("model":"gpt","data":"poems")";
  write_run(a(), metrics, settings, R"(,"evaluation_fingerprint":"00ab")");
  write_run(b(), metrics, settings, R"(,"evaluation_fingerprint":"00ab")");
  RandomStream random(4);
  std::vector<SampleRow> rows_a;
  std::vector<SampleRow> rows_b;
  double tokens = 0;
  double sum_a = 0;
  double sum_b = 0;
  double right_a = 0;
  for (int i = 0; i < 200; ++i) {
    const int length = i == 199 ? 10 : 64;  // the last window is shorter
    const double loss = std::round((1 + random.uniform()) * 1e6) / 1e6;
    rows_a.push_back({length, length / 2, loss});
    rows_b.push_back({length, length / 2 + static_cast<int>(random.below(3)), loss - 0.125});
    tokens += length;
    sum_a += length * loss;
    sum_b += length * (loss - 0.125);
    right_a += length / 2;  // NOLINT(bugprone-integer-division): tokens are whole
  }
  const char* header = "sample,tokens,correct,loss";
  write_evaluation(a(), rows_a, false, header);
  write_evaluation(b(), rows_b, false, header);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  // Means over tokens, not over windows.
  EXPECT_NEAR(metric("loss").at("a"), sum_a / tokens, 1e-9);
  EXPECT_NEAR(metric("loss").at("difference"), -0.125, 1e-9);
  EXPECT_NEAR(metric("accuracy").at("a"), right_a / tokens, 1e-9);
  EXPECT_EQ(metric("accuracy").at("test"), "paired t-test");
  EXPECT_EQ(metric("accuracy").at("better"), "b");
  EXPECT_NEAR(metric("perplexity").at("a"), std::exp(sum_a / tokens), 1e-8);
  EXPECT_NEAR(metric("perplexity").at("difference"),
              std::exp(sum_b / tokens) - std::exp(sum_a / tokens),
              1e-8);
  EXPECT_EQ(metric("perplexity").at("better"), "b");
  EXPECT_TRUE(has(done.out, "200 windows of text")) << done.out;
  // Neither perplexity is known well enough to say how much larger one is; their ratio is, from the
  // interval of the loss.
  EXPECT_FALSE(metric("perplexity").contains("interval95"));
  EXPECT_NEAR(metric("perplexity").at("ratio"), std::exp(-0.125), 1e-8);
  const Json& loss = metric("loss").at("interval95");
  for (const std::size_t end : {0u, 1u}) {
    EXPECT_NEAR(
        metric("perplexity").at("ratio95").at(end), std::exp(loss.at(end).get<double>()), 1e-12);
  }
  char words[160];
  std::snprintf(
      words,
      sizeof(words),
      "perplexity is the exponential of the loss, so what is said of loss holds for it, and "
      "it is no further test: that of B is %.4g times that of A (95 %% interval ",
      std::exp(-0.125));
  EXPECT_TRUE(has(done.out, words)) << done.out;
}

// What training weighs the classes with is not in the loss of an evaluation.
TEST_F(CompareCommand, LossesOfTrainingsWithDifferentWeightsAreCompared) {
  const auto settings = [](const char* weights) {
    return std::string(R"("model":"mlp","data":"digits","loss_weights":)") + weights;
  };
  write_run(a(), kClassMetrics, settings("[]"));
  write_run(b(), kClassMetrics, settings("[1.0,2.0,1.0,1.0]"));
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.85, 3));
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(metric("loss").contains("p_value"));
  EXPECT_FALSE(has(done.out, "Not compared: loss")) << done.out;
}

// Of equal models, one pair in twelve shows this in two folds of 20 samples.
TEST_F(CompareCommand, FoldsWithoutSpreadAreNotTested) {
  const auto folds = [](double one, double other, double loss) {
    return ",\"folds\":" + Json::array({Json{{"accuracy", one}, {"loss", loss}},
                                        Json{{"accuracy", other}, {"loss", 2 * loss}}})
                               .dump();
  };
  for (const double other : {0.85, 0.15}) {  // also where rounding differs
    write_run(a(), kClassMetrics, R"("folds":2)", folds(0.85, other, 1));
    write_run(b(), kClassMetrics, R"("folds":2)", folds(0.90, other + 0.05, 1.1));
    const Finished done = compare();
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_TRUE(metric("accuracy").at("better").is_null());
    EXPECT_FALSE(metric("accuracy").contains("p_value"));
    EXPECT_FALSE(metric("accuracy").contains("interval95"));
    EXPECT_TRUE(has(done.out,
                    "accuracy was not tested: the difference is the same in all 2 folds, and what "
                    "shows no spread says nothing about chance\n"))
        << done.out;
    EXPECT_FALSE(has(done.out, "p adjusted")) << done.out;  // the loss alone was tested
    EXPECT_TRUE(metric("loss").contains("p_value"));
  }
  // Folds that are the same in both have no difference.
  write_run(b(), kClassMetrics, R"("folds":2)", folds(0.85, 0.15, 1.1));
  EXPECT_TRUE(has(compare().out, "no difference: accuracy is the same in both"));
}

// Ctrl-C in a fold: those before it have been trained and evaluated as in any other run.
TEST_F(CompareCommand, InterruptedFoldsAreComparedAsFarAsTheyCame) {
  const auto run = [](const std::string& folder, int planned, const std::vector<double>& found) {
    Json folds = Json::array();
    for (const double each : found) {
      folds.push_back(each > 0 ? Json{{"accuracy", each}} : Json::object());
    }
    const bool whole = found.size() == static_cast<std::size_t>(planned) && found.back() > 0;
    write_file(
        folder + "/config.json",
        R"({"model":"mlp","data":"digits","seed":1,"folds":)" + std::to_string(planned) + "}");
    write_file(folder + "/summary.json",
               Json{{"status", whole ? "finished" : "interrupted"},
                    {"steps", 30},
                    {"metrics", found[0] > 0 ? Json{{"accuracy", 0.5}} : Json::object()},
                    {"folds", folds}}
                   .dump());
  };
  const std::vector<double> of_a = {0.80, 0.82, 0.78, 0.85};
  run(a(), 4, of_a);
  run(b(), 4, {0.82, 0.85, 0.79, 0});  // 0: interrupted
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "folds");
  const Difference expected =
      paired_t_test(std::vector<double>{0.80, 0.82, 0.78}, std::vector<double>{0.82, 0.85, 0.79});
  EXPECT_NEAR(metric("accuracy").at("p_value"), expected.p_value, 1e-12);
  EXPECT_NEAR(metric("accuracy").at("a"), 0.80, 1e-12);  // of the same folds
  EXPECT_TRUE(has(done.out, "3 of 4 folds (those that both have finished), the same in both"))
      << done.out;
  EXPECT_TRUE(has(done.out, "interrupted after 30 steps, when 3 of its 4 folds had finished"))
      << done.out;
  EXPECT_FALSE(has(done.out, "Not compared: results")) << done.out;
  // One fold has no spread, and a list of two is not a run of two folds.
  run(b(), 4, {0.82, 0});
  done = compare();
  EXPECT_TRUE(has(done.out, "1 of 4 folds (those that both have finished)")) << done.out;
  EXPECT_TRUE(has(done.out, "accuracy was not tested: a single fold has no spread")) << done.out;
  EXPECT_FALSE(has(done.out, "as much data")) << done.out;
  run(a(), 2, {0.80, 0.82});
  done = compare();
  EXPECT_TRUE(has(done.out, "Not compared: results (different folds: 2 in A and 4 in B"))
      << done.out;
  EXPECT_FALSE(has(done.out, "independent sets")) << done.out;
  // None has finished.
  run(a(), 4, {0});
  run(b(), 4, {0});
  done = compare();
  EXPECT_TRUE(has(done.out,
                  "Not compared: results (of 4 folds, 0 finished in A and 0 in B: there is none to "
                  "compare)"))
      << done.out;
  EXPECT_FALSE(has(done.out, "no metric in common")) << done.out;
  // Of different samples, each its own.
  run(a(), 4, of_a);
  run(b(), 4, {0.82, 0.85, 0});
  write_file(b() + "/config.json", R"({"model":"mlp","data":"digits","seed":2,"folds":4})");
  done = compare();
  EXPECT_TRUE(has(done.out, "4 of 4 folds in A and 2 in B have finished, of different samples"))
      << done.out;
  EXPECT_NEAR(metric("accuracy").at("p_value"),
              welch_t_test(of_a, std::vector<double>{0.82, 0.85}).p_value,
              1e-12);
}

// A mean over classes is decided by its rarest one.
TEST_F(CompareCommand, ClassesOfFewSamplesLeaveTheirMeansUntested) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  const auto rows = [&](int rare, int taken, int wrong) {
    std::vector<SampleRow> all;
    for (int i = 0; i < 200; ++i) {
      const int target = i < rare ? 1 : 0;
      const bool found = target == 1 ? i < taken : i >= 200 - wrong;
      all.push_back({target, found ? 1 : 0, 0.5 + 0.001 * i});
    }
    return all;
  };
  write_evaluation(a(), rows(4, 2, 40));
  write_evaluation(b(), rows(4, 4, 30));
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  for (const char* name : {"precision", "recall", "f1"}) {
    EXPECT_FALSE(metric(name).contains("p_value")) << name;
    EXPECT_TRUE(has(done.out,
                    std::string(name) +
                        " was not tested: there are 4 samples of class 1, too few for a mean over "
                        "classes\n"))
        << done.out;
  }
  EXPECT_TRUE(metric("accuracy").contains("p_value"));
  // Enough samples, of which one run finds next to none: its precision is of few predictions.
  write_evaluation(a(), rows(60, 3, 0));
  write_evaluation(b(), rows(60, 40, 10));
  done = compare();
  EXPECT_TRUE(metric("recall").contains("p_value"));
  EXPECT_TRUE(
      has(done.out,
          "precision was not tested: A takes 3 samples for class 1, too few for a mean over "
          "classes\n"))
      << done.out;
}

TEST_F(CompareCommand, SharesOfFoldsDifferByNoMoreThanAll) {
  const auto folds = [](double one, double other) {
    return ",\"folds\":" + Json::array({Json{{"accuracy", one}}, Json{{"accuracy", other}}}).dump();
  };
  write_run(a(), kClassMetrics, R"("folds":2)", folds(0.2, 0.9));
  write_run(b(), kClassMetrics, R"("folds":2)", folds(0.8, 0.4));
  compare();
  EXPECT_EQ(metric("accuracy").at("interval95"), Json({-1.0, 1.0}));
}

// With five tests, one that is rare by itself is not rare among them.
TEST_F(CompareCommand, SeveralMetricsAreJudgedTogether) {
  const auto folds_of = [](const std::vector<std::vector<double>>& metrics) {
    Json folds = Json::array();
    for (std::size_t fold = 0; fold < metrics[0].size(); ++fold) {
      Json values;
      for (std::size_t i = 0; i < metrics.size(); ++i) {
        values["metric" + std::to_string(i)] = metrics[i][fold];
      }
      folds.push_back(values);
    }
    return ",\"folds\":" + folds.dump();
  };
  // Differences of which one alone has a p-value of 0.03, in words of Student's t with 4 degrees:
  // mean / (deviation / sqrt(5)) = 3.298.
  const std::vector<double> spread = {-1, -0.5, 0, 0.5, 1};  // deviation sqrt(5 / 8)
  const double shift = 3.2979 * std::sqrt(0.625 / 5);
  std::vector<std::vector<double>> of_a(4, std::vector<double>(5, 1.0));
  std::vector<std::vector<double>> of_b = of_a;
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t fold = 0; fold < 5; ++fold) {
      of_b[i][fold] += spread[(fold + i) % 5] + (i == 0 ? shift : 0.01);
    }
  }
  write_run(a(), kClassMetrics, R"("folds":5)", folds_of(of_a));
  write_run(b(), kClassMetrics, R"("folds":5)", folds_of(of_b));
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(metric("metric0").at("p_value"), 0.03, 1e-4);
  EXPECT_NEAR(metric("metric0").at("p_adjusted"), 4 * 0.03, 4e-4);
  EXPECT_TRUE(metric("metric0").at("better").is_null());
  // How often chance does this to one metric is its own p-value; with four of them it is no
  // surprise. The interval, which is this metric's alone, leaves out 0 all the same, and says why.
  EXPECT_GT(metric("metric0").at("interval95").at(0).get<double>(), 0);
  EXPECT_TRUE(has(done.out, "no clear difference among 4 metrics: metric0 of B came out "))
      << done.out;
  EXPECT_TRUE(has(done.out, "in about 30 of 1000 comparisons (p adjusted for 4 metrics: 0.120)"))
      << done.out;
  EXPECT_TRUE(has(done.out, "each 95 % interval is for its metric alone")) << done.out;
  // Alone it is.
  write_run(a(), kClassMetrics, R"("folds":5)", folds_of({of_a[0]}));
  write_run(b(), kClassMetrics, R"("folds":5)", folds_of({of_b[0]}));
  done = compare();
  EXPECT_NEAR(metric("metric0").at("p_adjusted"), 0.03, 1e-4);
  EXPECT_EQ(metric("metric0").at("better"), "b");
  EXPECT_FALSE(has(done.out, "adjusted for")) << done.out;
  EXPECT_FALSE(has(done.out, "for its metric alone")) << done.out;
}

// Windows of any two texts are alike in number and length.
TEST_F(CompareCommand, WindowsOfDifferentTextsAreNoPairs) {
  const char* metrics = R"("loss":1.5,"accuracy":0.5,"perplexity":4.5)";
  const char* settings = R"("model":"gpt","data":"poems")";
  std::vector<SampleRow> rows;
  for (int i = 0; i < 50; ++i) {
    rows.push_back({64, 32, 1 + 0.01 * i});
  }
  write_run(a(), metrics, settings, R"(,"evaluation_fingerprint":"00ab")");
  write_evaluation(a(), rows, false, "sample,tokens,correct,loss");
  for (SampleRow& row : rows) {
    row.loss += 0.5;
  }
  write_evaluation(b(), rows, false, "sample,tokens,correct,loss");
  write_run(b(), metrics, settings, R"(,"evaluation_fingerprint":"00ac")");
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "windows of another text")) << done.out;
  EXPECT_FALSE(has(done.out, "is better")) << done.out;
  write_run(b(), metrics, settings);
  done = compare();
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "does not say of which")) << done.out;
}

TEST_F(CompareCommand, SamplesWithTheSameTargetsThatHoldSomethingElseAreNoPairs) {
  const char* settings = R"("model":"mlp","data":"digits")";
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.85, 3));
  write_run(a(), kClassMetrics, settings, R"(,"evaluation_fingerprint":"00ab")");
  write_run(b(), kClassMetrics, settings, R"(,"evaluation_fingerprint":"00ab")");
  EXPECT_FALSE(has(compare().out, "with the same targets but different content"));
  EXPECT_EQ(json_.at("basis"), "samples");
  write_run(b(), kClassMetrics, settings, R"(,"evaluation_fingerprint":"00ac")");
  EXPECT_TRUE(has(compare().out, "with the same targets but different content"));
  EXPECT_EQ(json_.at("basis"), "one number");
}

TEST_F(CompareCommand, SaysWhenNothingCanBeSaid) {
  write_run(a(), R"("loss":0.5,"accuracy":0.8)");
  write_run(b(), R"("loss":0.4,"accuracy":null,"other":3)");
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_FALSE(metric("loss").contains("p_value"));
  EXPECT_NEAR(metric("loss").at("difference"), -0.1, 1e-12);
  EXPECT_TRUE(metric("accuracy").at("b").is_null());
  EXPECT_EQ(json_.at("metrics").size(), 2u);
  EXPECT_TRUE(has(done.out, "there is only one number per run")) << done.out;
}

// More folds would not bring back what has been removed, or was never evaluated.
TEST_F(CompareCommand, SaysInWhichRunTheResultsOfSamplesAreMissing) {
  for (const std::string& run : {a(), b()}) {
    write_run(run, kClassMetrics);
    write_evaluation(run, rows_with(0.80, 2));
  }
  std::filesystem::remove(a() + "/evaluation.csv");
  Finished done = compare();
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "(evaluation.csv), are missing in A; A: ")) << done.out;
  EXPECT_TRUE(has(done.out, "trireme train --config " + a() + "/config.json --run NEW"))
      << done.out;
  EXPECT_FALSE(has(done.out, "--folds")) << done.out;
  EXPECT_FALSE(has(done.out, b() + "/config.json")) << done.out;
  // A run with a checkpoint writes it when it is resumed, also after its last step.
  std::filesystem::remove(b() + "/evaluation.csv");
  write_file(b() + "/checkpoints/step-00000100/manifest.json", "{}");
  done = compare();
  EXPECT_TRUE(has(done.out, "are missing in A and B; A: ")) << done.out;
  EXPECT_TRUE(has(done.out, "; B: to complete it: trireme train --resume " + b())) << done.out;
  EXPECT_FALSE(has(done.out, "--folds")) << done.out;
  // There was nothing to evaluate on.
  write_run(b(), "");
  done = compare();
  EXPECT_TRUE(has(done.out, "nothing was evaluated in B")) << done.out;
  EXPECT_TRUE(has(done.out, "--eval-fraction")) << done.out;
}

TEST_F(CompareCommand, WritesJsonAloneToStandardOutput) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  const Finished done =
      testing::run_program({testing::trireme_binary(), "compare", a(), b(), "--json", "-"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(Json::parse(done.out, nullptr, false).contains("metrics")) << done.out;
  EXPECT_FALSE(std::filesystem::exists("-"));
}

// The mean of folds is over all samples, and that of another run over those that it held out.
TEST_F(CompareCommand, FoldsAreNotComparedWithASingleTraining) {
  const char* folds = R"(,"folds":[{"accuracy":0.7},{"accuracy":0.9}])";
  write_run(a(), R"("accuracy":0.6)", R"("data":"digits","folds":0)");
  write_run(b(), R"("accuracy":0.8)", R"("data":"digits","folds":2)", folds);
  write_evaluation(a(), rows_with(0.60, 2));
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "nothing");
  EXPECT_TRUE(metric("accuracy").at("difference").is_null());
  EXPECT_EQ(metric("accuracy").at("a"), 0.6);
  EXPECT_TRUE(has(done.out,
                  "Not compared: results (different samples: one model on the part held out in A "
                  "and 2 models, each on its own fold in B; to compare them, train both with the "
                  "same --folds)\n"))
      << done.out;
  EXPECT_FALSE(has(done.out, "20.00 points")) << done.out;
  // The other way round, and with other data, too.
  write_run(a(), R"("accuracy":0.6)", R"("data":"digits","folds":2)", folds);
  write_run(b(), R"("accuracy":0.8)", R"("data":"letters","folds":0)");
  done = compare();
  EXPECT_EQ(json_.at("basis"), "nothing");
  EXPECT_TRUE(has(done.out, "(different data: digits and letters; samples: 2 models")) << done.out;
}

// The loss of digits and that of poems are numbers of different things.
TEST_F(CompareCommand, ResultsOnDifferentDataAreNotCompared) {
  write_run(a(), R"("loss":0.5,"accuracy":0.8)");
  write_run(b(), R"("loss":0.4,"accuracy":0.9)", R"("model":"gpt","data":"poems")");
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.95, 3));  // of older runs: nobody knows what they hold
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json_.at("basis"), "nothing");
  EXPECT_TRUE(metric("loss").at("difference").is_null());
  EXPECT_TRUE(metric("loss").at("better").is_null());
  EXPECT_FALSE(metric("accuracy").contains("p_value"));
  EXPECT_EQ(metric("loss").at("a"), 0.5);
  EXPECT_TRUE(has(done.out, "Not compared: results (different data: digits and poems)\n"))
      << done.out;
  EXPECT_FALSE(has(done.out, "is better")) << done.out;
  // The same number of folds makes them no more alike.
  const char* folds = R"(,"folds":[{"loss":1},{"loss":2},{"loss":3}])";
  write_run(a(), R"("loss":0.5)", R"("folds":3,"data":"digits")", folds);
  write_run(b(), R"("loss":0.5)", R"("folds":3,"data":"poems")", folds);
  compare();
  EXPECT_EQ(json_.at("basis"), "nothing");
  // Classes of one run, quantities of the other.
  write_run(a(), R"("loss":0.5)", R"("data":"digits","regression":true)");
  write_run(b(), R"("loss":0.5)", R"("data":"digits","regression":false)");
  EXPECT_TRUE(has(compare().out, "Not compared: results (different regression: true and false)"));
}

TEST_F(CompareCommand, DataThatHoldsTheSameIsTheSameWhateverItIsCalled) {
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.85, 3));
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  const char* same = R"(,"evaluation_fingerprint":"00ab")";
  write_run(a(), kClassMetrics, R"("model":"mlp","data":"digits")", same);
  write_run(b(), kClassMetrics, R"("model":"mlp","data":"/data/digits")", same);
  compare();
  EXPECT_EQ(json_.at("basis"), "samples");
  EXPECT_EQ(metric("accuracy").at("better"), "b");
  EXPECT_NEAR(json_.at("speed").at("ratio"), 1.5, 0.005);
  EXPECT_TRUE(json_.at("not_compared").empty()) << json_;
}

// A small model is not fast because it is small.
TEST_F(CompareCommand, SpeedsOfDifferentWorkAreNotCompared) {
  const char* same = R"(,"evaluation_fingerprint":"00ab")";
  write_evaluation(a(), rows_with(0.80, 2));
  write_evaluation(b(), rows_with(0.85, 3));
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  write_run(a(), kClassMetrics, R"("model":"convnet","data":"digits","ranks":1,"batch":128)", same);
  write_run(b(), kClassMetrics, R"("model":"mlp","data":"digits","ranks":2,"batch":64)", same);
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(metric("accuracy").at("better"), "b");  // the same samples: that can be
  EXPECT_FALSE(json_.contains("speed")) << json_;
  EXPECT_FALSE(json_.contains("scaling")) << json_;
  EXPECT_NEAR(json_.at("a").at("throughput").at("per_second"), 1000, 3);
  EXPECT_TRUE(
      has(done.out, "Not compared: speed (different model: convnet and mlp; batch: 128 and 64)\n"))
      << done.out;
  EXPECT_FALSE(has(done.out, "times as fast")) << done.out;
  EXPECT_FALSE(has(done.out, "ranks reach")) << done.out;
  // Each of these alone; what is not known to change nothing counts, too.
  for (const std::string one : {R"("precision":"bfloat16")",
                                R"("size":"small")",
                                R"("sequence":32)",
                                R"("optimizer":"sgd")",
                                R"("something_new":1)"}) {
    write_run(a(), kClassMetrics, R"("model":"gpt","data":"digits")", same);
    write_run(b(), kClassMetrics, R"("model":"gpt","data":"digits",)" + one, same);
    compare();
    EXPECT_FALSE(json_.contains("speed")) << one;
    EXPECT_EQ(json_.at("not_compared").size(), 1u) << one;
  }
  // How the same is computed is what speed is asked of.
  for (const std::string one : {R"("zero":3)", R"("threads":2)", R"("micro_batch":"8")"}) {
    write_run(b(), kClassMetrics, R"("model":"gpt","data":"digits",)" + one, same);
    compare();
    EXPECT_TRUE(json_.contains("speed")) << one;
  }
}

// What a setting did before there was one is no difference from a run that records it.
TEST_F(CompareCommand, RunsOfOlderVersionsHadTheSettingsThatCameLater) {
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  write_run(a(), kClassMetrics);
  const std::string now = R"("model":"mlp","data":"digits","optimizer_options":)";
  write_run(b(), kClassMetrics, now + R"([],"decay_all":true)");
  compare();
  EXPECT_TRUE(json_.at("settings").empty()) << json_;
  EXPECT_TRUE(json_.contains("speed")) << json_;
  write_run(b(), kClassMetrics, now + R"(["amsgrad"],"decay_all":false)");
  const Finished done = compare();
  EXPECT_EQ(json_.at("settings").size(), 2u) << json_;
  EXPECT_TRUE(
      has(done.out, "Not compared: speed (different optimizer_options: [] and [\"amsgrad\"])"))
      << done.out;
}

TEST_F(CompareCommand, SpeedsOfDifferentMachinesAreNotCompared) {
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  const auto on = [](const std::string& processor, int count) {
    return R"(,"machine":{"processor":")" + processor + R"(","processors":)" +
           std::to_string(count) + R"(,"machines":1})";
  };
  const char* settings = R"("model":"mlp")";
  write_run(a(), kClassMetrics, settings, on("Xeon", 2));
  write_run(b(), kClassMetrics, settings, on("Xeon", 2));
  compare();
  EXPECT_TRUE(json_.contains("speed"));
  write_run(b(), kClassMetrics, settings, on("Xeon", 4));
  const Finished done = compare();
  EXPECT_FALSE(json_.contains("speed"));
  EXPECT_TRUE(has(done.out, "Not compared: speed (different machine: 2 x Xeon and 4 x Xeon)"))
      << done.out;
  write_run(b(), kClassMetrics, settings);  // an older run does not say
  compare();
  EXPECT_TRUE(json_.contains("speed"));
}

TEST_F(CompareCommand, ScalingIsOfTheRanksAlone) {
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  write_run(a(), kClassMetrics, R"("model":"mlp","ranks":1,"seed":1,"run":"x")");
  write_run(b(), kClassMetrics, R"("model":"mlp","ranks":2,"seed":2,"run":"y")");
  Finished done = compare();
  EXPECT_NEAR(json_.at("scaling").at("efficiency"), 0.75, 0.005);
  EXPECT_TRUE(has(done.out, "2 ranks reach 75 % of 2 times the speed of 1")) << done.out;
  write_run(b(), kClassMetrics, R"("model":"mlp","ranks":2,"zero":3)");
  done = compare();
  EXPECT_FALSE(json_.contains("scaling"));
  EXPECT_TRUE(json_.contains("speed"));
  EXPECT_TRUE(has(done.out, "Not compared: scaling with the ranks (different zero: - and 3)"))
      << done.out;
  // Of a speed about which nothing is known, nothing follows for the ranks.
  write_run(b(), kClassMetrics, R"("model":"mlp","ranks":2)");
  write_log(b(), 5, 1500);
  done = compare();
  EXPECT_FALSE(json_.contains("scaling"));
  EXPECT_TRUE(has(done.out, "Not compared: scaling with the ranks (the runs are too short"))
      << done.out;
}

TEST_F(CompareCommand, AFileThatCannotBeWrittenIsRefusedBeforeTheReport) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  const Finished done = testing::run_program(
      {testing::trireme_binary(), "compare", a(), b(), "--json", a() + "/nowhere/x.json"});
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_TRUE(has(done.err, "nowhere/x.json")) << done.err;
}

// One that is killed, or still runs, is told from one that was to save nothing.
TEST_F(CompareCommand, SaysHowARunGetsToItsEndThatHasSavedNothingYet) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics, R"("model":"mlp","save_every":500)");
  std::filesystem::remove(b() + "/summary.json");
  const Finished done = compare();
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(has(done.err, "has not reached step 500")) << done.err;
  EXPECT_FALSE(has(done.err, "--save-every N")) << done.err;
}

// config.json has the number of ranks at the end: no scaling can be computed from it.
TEST_F(CompareCommand, SaysWhereSpeedIsOfDifferentNumbersOfRanks) {
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  write_run(a(), kClassMetrics, R"("model":"mlp","ranks":1)");
  write_run(b(),
            kClassMetrics,
            R"("model":"mlp","ranks":2)",
            R"(,"rank_changes":{"times":3,"lost":2,"joined":1,"steps_again":2})");
  const Finished done = compare();
  EXPECT_TRUE(json_.contains("speed")) << json_;
  EXPECT_FALSE(json_.contains("scaling")) << json_;
  EXPECT_TRUE(has(done.out,
                  "the ranks of B changed 3 times while it trained (2 lost, 0 left, 1 joined): its "
                  "speed is the mean over different numbers of ranks"))
      << done.out;
  EXPECT_TRUE(has(done.out, "Not compared: scaling with the ranks (different ranks in the course"))
      << done.out;
  EXPECT_FALSE(has(done.out, "the ranks of A")) << done.out;
  EXPECT_EQ(json_.at("b").at("rank_changes").at("lost"), 2);
  EXPECT_FALSE(json_.at("a").contains("rank_changes"));
}

TEST_F(CompareCommand, DifferentSamplesOrTargetsAreNoPairs) {
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  write_evaluation(a(), {{0, 0, 0.5}, {1, 1, 0.5}});
  write_evaluation(b(), {{0, 0, 0.5}, {2, 1, 0.5}});
  Finished done = compare();
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "with different targets")) << done.out;
  write_evaluation(b(), {{0, 0, 0.5}});
  done = compare();
  EXPECT_EQ(json_.at("basis"), "one number");
  EXPECT_TRUE(has(done.out, "A on 2, B on 1")) << done.out;
  EXPECT_TRUE(has(done.out, "--folds")) << done.out;
}

TEST_F(CompareCommand, LossesThatAreNotFiniteAreNotCompared) {
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":null)");
  write_file(a() + "/evaluation.csv", "sample,target,prediction,loss\n0,1.5,1.4,0.01\n1,2,2,0\n");
  write_file(b() + "/evaluation.csv", "sample,target,prediction,loss\n0,1.5,1.4,nan\n1,2,2,\n");
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(metric("loss").at("p_value").is_null());
  EXPECT_TRUE(has(done.out, "loss cannot be compared")) << done.out;
  EXPECT_TRUE(has(done.out, "not tested\n")) << done.out;
  EXPECT_FALSE(has(done.out, "nan to nan")) << done.out;
}

// Of five metrics, one has no p-value: the others are four.
TEST_F(CompareCommand, PValuesAreAdjustedForThoseThatThereAre) {
  std::vector<SampleRow> rows = rows_with(0.80, 2);
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  write_evaluation(a(), rows);
  write_evaluation(b(), rows_with(0.82, 3));
  EXPECT_TRUE(has(compare().out, "p adjusted for 5 metrics"));
  rows[7].loss = std::nan("");
  write_evaluation(a(), rows);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has(done.out, "p adjusted for 4 metrics")) << done.out;
  EXPECT_FALSE(has(done.out, "for 5 metrics")) << done.out;
  EXPECT_TRUE(metric("loss").at("p_adjusted").is_null());
}

// -1 stands for a prediction that there is none of: a miss of the sample's class, and no class.
TEST_F(CompareCommand, ASampleWithoutAPredictionIsAMiss) {
  std::vector<SampleRow> rows = rows_with(0.80, 2);
  ConfusionMatrix matrix(4);
  write_run(a(), kClassMetrics);
  write_run(b(), kClassMetrics);
  write_evaluation(a(), rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].prediction = i % 9 == 0 ? -1 : rows[i].prediction;
    matrix.add(rows[i].target, rows[i].prediction);
  }
  write_evaluation(b(), rows);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(metric("accuracy").at("b"), matrix.accuracy(), 1e-12);
  EXPECT_NEAR(metric("f1").at("b"), matrix.macro().f1, 1e-12);
  EXPECT_NEAR(metric("precision").at("b"), matrix.macro().precision, 1e-12);
  EXPECT_NEAR(metric("recall").at("b"), matrix.macro().recall, 1e-12);
  EXPECT_EQ(metric("recall").at("better"), "a");
}

TEST_F(CompareCommand, SpeedLeavesOutTheFirstSteps) {
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":0.4)");
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1500);
  const auto slow_start = [](const std::string& path) {
    std::string text = "{\"step\":0,\"loss\":9,\"samples_per_second\":1}\n";
    write_file(path, text + testing::read_file(path));
  };
  slow_start(a() + "/metrics.jsonl");
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  const Json& speed = json_.at("speed");
  EXPECT_NEAR(speed.at("a"), 1000, 3);
  EXPECT_NEAR(speed.at("b"), 1500, 3);
  EXPECT_NEAR(speed.at("ratio"), 1.5, 0.005);
  EXPECT_LT(speed.at("p_value").get<double>(), 1e-9);
  EXPECT_TRUE(has(done.out, "B is 1.50 times as fast")) << done.out;
  EXPECT_TRUE(has(done.out, "84 MB")) << done.out;
  EXPECT_TRUE(has(done.out, "3.1 %")) << done.out;
}

// A log with steps of these seconds and samples.
void write_steps(const std::string& folder, const std::vector<std::pair<double, int>>& steps) {
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& [seconds, samples] = steps[i];
    text += Json({{"step", i + 1},
                  {"seconds", seconds},
                  {"samples", samples},
                  {"samples_per_second", samples / seconds}})
                .dump() +
            "\n";
  }
  write_file(folder + "/metrics.jsonl", text);
}

// What was computed in all the time it took: not the mean of the steps' rates, in which short steps
// count as much as long ones.
TEST_F(CompareCommand, SpeedIsWorkDividedByTime) {
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":0.4)");
  std::vector<std::pair<double, int>> uneven;
  std::vector<std::pair<double, int>> even;
  double seconds = 0;
  double samples = 0;
  for (int i = 0; i < 200; ++i) {
    uneven.emplace_back(i % 2 == 0 ? 0.1 : 1.0, 10);
    even.emplace_back(0.5, 10);
    seconds += i >= 20 ? uneven.back().first : 0;
    samples += i >= 20 ? 10 : 0;
  }
  write_steps(a(), uneven);
  write_steps(b(), even);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(
      json_.at("speed").at("a"), samples / seconds, 1e-6);  // 18, where the rates' mean is 55
  EXPECT_NEAR(json_.at("speed").at("b"), 20, 1e-6);
}

// As many as the run's own throughput leaves out, also where it ended before its last step.
TEST_F(CompareCommand, TheSummarySaysWhichStepsDoNotCount) {
  write_run(a(), R"("loss":0.5)", R"("model":"mlp")", R"(,"throughput":{"untimed_steps":30})");
  write_run(b(), R"("loss":0.4)", R"("model":"mlp")");
  std::vector<std::pair<double, int>> steps(40, {1.0, 10});
  std::fill(steps.begin(), steps.begin() + 30, std::pair(2.0, 10));
  write_steps(a(), steps);
  write_steps(b(), steps);
  const Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(json_.at("speed").at("a"), 10, 1e-9);
  EXPECT_NEAR(json_.at("speed").at("b"), 360 / (26 * 2.0 + 10), 1e-9);  // without a tenth
}

TEST_F(CompareCommand, RunsWithSkippedStepsAreCompared) {
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":0.4)");
  write_log(a(), 100, 1000);
  write_log(b(), 100, 1000);
  write_file(b() + "/metrics.jsonl",
             testing::read_file(b() + "/metrics.jsonl") +
                 R"({"step":101,"loss":null,"samples_per_second":1000,"skipped":true})" + "\n");
  const Finished done = compare();
  EXPECT_EQ(done.code, 0) << done.err;
}

// Ten slow steps beside each other are one event, not ten.
TEST_F(CompareCommand, NeighbouringStepsAreNotIndependent) {
  write_run(a(), R"("loss":0.5)");
  write_run(b(), R"("loss":0.4)");
  std::vector<std::pair<double, int>> calm;
  std::vector<std::pair<double, int>> disturbed;
  RandomStream random(5);
  for (int i = 0; i < 400; ++i) {
    calm.emplace_back(1 + 0.02 * random.uniform(), 10);
    disturbed.emplace_back((i >= 200 && i < 240 ? 1.5 : 1) + 0.02 * random.uniform(), 10);
  }
  write_steps(a(), calm);
  write_steps(b(), disturbed);
  const Finished done = compare();
  EXPECT_GT(json_.at("speed").at("p_value").get<double>(), 0.05) << json_.at("speed");
  EXPECT_TRUE(
      has(done.out, "the speed of a run varied too slowly to tell a difference from chance"))
      << done.out;
  EXPECT_TRUE(json_.at("speed").contains("not_tested")) << json_.at("speed");
  EXPECT_FALSE(has(done.out, "times as fast")) << done.out;
  // Three steps tell nothing.
  write_steps(b(), {{1, 10}, {0.5, 10}, {0.5, 10}});
  EXPECT_TRUE(
      has(compare().out, "too short to compare their speed: it was measured over 360 and 2 steps"));
}

// Of a fold with two steps one counts. Five such folds are five steps, not five blocks of them.
TEST_F(CompareCommand, ShortFoldsTellNothingOfTheSpeed) {
  const std::string folds =
      R"(,"folds":[{"loss":0.5},{"loss":0.4},{"loss":0.5},{"loss":0.6},{"loss":0.5}])";
  write_run(a(), R"("loss":0.5)", R"("folds":5)", folds);
  write_run(b(), R"("loss":0.5)", R"("folds":5)", folds);
  RandomStream random(6);
  const auto fold = [&](int steps, double seconds) {
    std::vector<std::pair<double, int>> all;
    for (int i = 0; i < steps; ++i) {
      all.emplace_back(seconds * (1 + 0.02 * random.uniform()), 10);
    }
    return all;
  };
  for (int i = 1; i <= 5; ++i) {
    const std::string name = "/fold-" + std::to_string(i);
    write_steps(a() + name, fold(2, 1));
    write_steps(b() + name, fold(40, 0.25));
  }
  Finished done = compare();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(
      has(done.out, "too short to compare their speed: it was measured over 5 and 180 steps"))
      << done.out;
  EXPECT_NEAR(json_.at("a").at("throughput").at("per_second"), 10, 0.2);
  // Five steps each, of which four count, fill a block together with their neighbours.
  for (int i = 1; i <= 5; ++i) {
    write_steps(a() + "/fold-" + std::to_string(i), fold(5, 1));
  }
  done = compare();
  EXPECT_TRUE(
      has(done.out, "too short to compare their speed: it was measured over 20 and 180 steps"))
      << done.out;
  for (int i = 1; i <= 5; ++i) {
    write_steps(a() + "/fold-" + std::to_string(i), fold(20, 1));
  }
  done = compare();
  EXPECT_NEAR(json_.at("speed").at("ratio"), 4, 0.1);
  EXPECT_TRUE(has(done.out, " times as fast")) << done.out;
}

// What is missing in a run that did not come to its end, and what helps.
TEST_F(CompareCommand, SaysHowARunThatDidNotEndIsCompleted) {
  const std::string resume = "trireme train --resume " + b();
  const std::string again = "trireme train --config " + b() + "/config.json --run NEW";
  write_run(a(), R"("loss":0.5)");
  write_file(a() + "/evaluation.csv", "sample,target,prediction,loss\n0,1,1,0.5\n");
  write_file(b() + "/config.json", R"({"model":"mlp","data":"digits"})");
  const auto write_end = [&](const std::string& text) { write_file(b() + "/summary.json", text); };
  const auto words = [&] {
    const Finished done = compare();
    return done.out + done.err;
  };
  // Killed: without a checkpoint there is nothing to resume.
  EXPECT_TRUE(has(words(), "found no summary.json")) << words();
  EXPECT_TRUE(has(words(), again)) << words();
  EXPECT_FALSE(has(words(), resume)) << words();
  write_end(R"({"status":"failed","reason":"rank 1 was killed"})");
  EXPECT_TRUE(has(words(), again)) << words();
  // Interrupted, before anything was evaluated, and after.
  write_end(R"({"status":"interrupted","steps":30,"metrics":{}})");
  EXPECT_TRUE(has(words(), "nothing was evaluated in B")) << words();
  EXPECT_TRUE(has(words(), "which ended before an evaluation: resume it")) << words();
  EXPECT_TRUE(has(words(), again)) << words();
  write_end(R"({"status":"interrupted","steps":30,"metrics":{"loss":0.7}})");
  EXPECT_TRUE(has(words(), "interrupted after 30 steps, before its last evaluation")) << words();
  EXPECT_TRUE(has(words(), "evaluation.csv), are missing in B")) << words();
  EXPECT_FALSE(has(words(), "--folds")) << words();
  // With a checkpoint.
  write_file(b() + "/checkpoints/step-00000030/manifest.json", "{}");
  EXPECT_TRUE(has(words(), resume)) << words();
  EXPECT_FALSE(has(words(), again)) << words();
  std::filesystem::remove(b() + "/summary.json");
  EXPECT_TRUE(has(words(), resume)) << words();
  // A cross-validation goes on with the fold at hand.
  std::filesystem::remove_all(b() + "/checkpoints");
  write_file(b() + "/fold-1/metrics.jsonl", "");
  EXPECT_TRUE(has(words(), resume)) << words();
}

TEST_F(CompareCommand, FoldersThatAreNoRunsAreNamed) {
  write_run(a(), R"("loss":0.5)");
  const auto message = [&] {
    const Finished done = compare();
    EXPECT_EQ(done.code, 2);
    EXPECT_TRUE(done.out.empty());
    return done.err;
  };
  EXPECT_TRUE(has(message(), b() + ": expected the folder of a run"));
  std::filesystem::create_directories(b());
  EXPECT_TRUE(has(message(), "found no config.json"));
  write_file(b() + "/config.json", "{}");
  EXPECT_TRUE(has(message(), "found a config.json without a model"));
  write_file(b() + "/config.json", R"({"model":"mlp"})");
  EXPECT_TRUE(has(message(), "found no summary.json"));
  write_file(b() + "/summary.json", "{");
  EXPECT_TRUE(has(message(), "summary.json: expected one JSON object"));
  write_file(b() + "/summary.json", "{\"steps\":1}");
  EXPECT_TRUE(has(message(), "status"));
  write_file(b() + "/summary.json", R"({"status":"failed","reason":"rank 1 was killed"})");
  EXPECT_TRUE(
      has(message(), "b: expected a run that has ended, found one that failed (rank 1 was"));
  write_file(b() + "/summary.json", "");
  EXPECT_TRUE(has(message(), "summary.json: expected one JSON object"));
  write_file(b() + "/summary.json", R"({"status":"finished","steps":1,"metrics":{"loss":"low"}})");
  EXPECT_TRUE(has(message(), "expected a number for \"loss\", found \"low\""));
  write_run(b(), R"("loss":0.5)");
  write_file(b() + "/evaluation.csv", "id,loss\n");
  write_file(a() + "/evaluation.csv", "sample,target,prediction,loss\n0,1,1\n");
  EXPECT_TRUE(has(message(), "a/evaluation.csv:2: expected sample,target,prediction,loss"));
  write_file(a() + "/evaluation.csv", "sample,target,prediction,loss\n0,1,1,0.5\n");
  EXPECT_TRUE(has(message(), "b/evaluation.csv:1: expected the header"));
}

}  // namespace
}  // namespace trireme::compare_command_test
