#include "trireme/metrics/confusion_matrix.h"

#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

struct Sample {
  std::int64_t target;
  std::int64_t prediction;
};

std::vector<Sample> random_samples(int count, std::int64_t classes, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const auto target = static_cast<std::int64_t>(random.below(classes));
    // Right half of the time, so that scores are far from 0 and 1.
    samples.push_back(
        {target,
         random.uniform() < 0.5 ? target : static_cast<std::int64_t>(random.below(classes))});
  }
  return samples;
}

double ratio(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}

// By the definitions, one pass over the samples per class.
ClassScores scores_by_definition(const std::vector<Sample>& samples, std::int64_t which) {
  double hits = 0;
  double predicted = 0;
  double there = 0;
  for (const Sample& sample : samples) {
    hits += sample.target == which && sample.prediction == which ? 1 : 0;
    predicted += sample.prediction == which ? 1 : 0;
    there += sample.target == which ? 1 : 0;
  }
  const double precision = ratio(hits, predicted);
  const double recall = ratio(hits, there);
  return {precision,
          recall,
          ratio(2 * precision * recall, precision + recall),
          static_cast<std::int64_t>(there)};
}

ConfusionMatrix matrix_of(const std::vector<Sample>& samples, std::int64_t classes) {
  ConfusionMatrix matrix(classes);
  for (const Sample& sample : samples) {
    matrix.add(sample.target, sample.prediction);
  }
  return matrix;
}

constexpr double kRounding = 1e-14;  // a handful of operations on numbers up to 1

TEST(ConfusionMatrix, ScoresFollowTheirDefinitions) {
  for (const std::int64_t classes : {1, 2, 3, 10}) {
    const auto samples = random_samples(500, classes, static_cast<std::uint64_t>(classes));
    const ConfusionMatrix matrix = matrix_of(samples, classes);
    ClassScores mean;
    double right = 0;
    for (const Sample& sample : samples) {
      right += sample.target == sample.prediction ? 1 : 0;
    }
    for (std::int64_t which = 0; which < classes; ++which) {
      const ClassScores expected = scores_by_definition(samples, which);
      const ClassScores found = matrix.of_class(which);
      EXPECT_NEAR(found.precision, expected.precision, kRounding);
      EXPECT_NEAR(found.recall, expected.recall, kRounding);
      EXPECT_NEAR(found.f1, expected.f1, kRounding);
      EXPECT_EQ(found.support, expected.support);
      mean.precision += expected.precision / static_cast<double>(classes);
      mean.recall += expected.recall / static_cast<double>(classes);
      mean.f1 += expected.f1 / static_cast<double>(classes);
    }
    EXPECT_NEAR(matrix.macro().precision, mean.precision, kRounding);
    EXPECT_NEAR(matrix.macro().recall, mean.recall, kRounding);
    EXPECT_NEAR(matrix.macro().f1, mean.f1, kRounding);
    EXPECT_EQ(matrix.macro().support, 500);
    EXPECT_DOUBLE_EQ(matrix.accuracy(), right / 500);
    EXPECT_DOUBLE_EQ(matrix.micro().precision, right / 500);
    EXPECT_DOUBLE_EQ(matrix.micro().recall, right / 500);
    EXPECT_DOUBLE_EQ(matrix.micro().f1, right / 500);
    EXPECT_EQ(matrix.total(), 500);
  }
}

TEST(ConfusionMatrix, AClassThatIsNeverPredictedOrNeverThereScoresZero) {
  ConfusionMatrix matrix(3);
  matrix.add(0, 1, 4);
  EXPECT_EQ(matrix.of_class(0).precision, 0);
  EXPECT_EQ(matrix.of_class(1).recall, 0);
  EXPECT_EQ(matrix.of_class(0).f1, 0);
  EXPECT_EQ(matrix.of_class(2).f1, 0);
}

TEST(ConfusionMatrix, TheAverageLeavesOutClassesThatDoNotOccur) {
  ConfusionMatrix matrix(1000);
  matrix.add(3, 3, 7);
  matrix.add(900, 900, 1);
  EXPECT_DOUBLE_EQ(matrix.macro().f1, 1);
  matrix.add(3, 5);  // 5 occurs among the predictions now, with a score of 0
  EXPECT_NEAR(matrix.macro().precision, 2.0 / 3, kRounding);
}

// Such a sample is missing among the hits of its class and is among the predictions of none.
TEST(ConfusionMatrix, ASampleWithoutAPredictionIsWrongWhateverItsClass) {
  ConfusionMatrix matrix(3);
  EXPECT_FALSE(matrix.lacks_predictions());
  matrix.add(0, 0, 6);
  matrix.add(1, 1, 3);
  matrix.add(0, ConfusionMatrix::kNoClass, 2);
  matrix.add(1, ConfusionMatrix::kNoClass);
  EXPECT_TRUE(matrix.lacks_predictions());
  EXPECT_EQ(matrix.total(), 12);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 9.0 / 12);
  EXPECT_DOUBLE_EQ(matrix.micro().f1, 9.0 / 12);
  EXPECT_EQ(matrix.of_class(0).support, 8);
  EXPECT_DOUBLE_EQ(matrix.of_class(0).recall, 6.0 / 8);
  EXPECT_DOUBLE_EQ(matrix.of_class(0).precision, 1);
  EXPECT_DOUBLE_EQ(matrix.of_class(0).f1, 2 * 6.0 / (6 + 8));
  EXPECT_DOUBLE_EQ(matrix.macro().recall, (6.0 / 8 + 3.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(matrix.macro().f1, (12.0 / 14 + 6.0 / 7) / 2);
  EXPECT_NE(matrix.to_string().find("3 of 12 samples have no prediction"), std::string::npos)
      << matrix.to_string();
  // A class of which no sample has one does occur.
  matrix.add(2, ConfusionMatrix::kNoClass);
  EXPECT_DOUBLE_EQ(matrix.macro().recall, (6.0 / 8 + 3.0 / 4) / 3);
}

TEST(ConfusionMatrix, MatricesOfRanksAddUpToThatOfAllSamples) {
  const auto samples = random_samples(300, 4, 9);
  ConfusionMatrix sum(4);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const std::vector<Sample> part(samples.begin() + static_cast<std::ptrdiff_t>(rank) * 100,
                                   samples.begin() + static_cast<std::ptrdiff_t>(rank + 1) * 100);
    const ConfusionMatrix matrix = matrix_of(part, 4);
    for (std::size_t i = 0; i < sum.counts().size(); ++i) {
      sum.counts()[i] += matrix.counts()[i];
    }
  }
  EXPECT_EQ(sum.counts(), matrix_of(samples, 4).counts());
}

TEST(ConfusionMatrix, NothingCountedScoresZero) {
  const ConfusionMatrix matrix(2);
  EXPECT_EQ(matrix.accuracy(), 0);
  EXPECT_EQ(matrix.macro().f1, 0);
  EXPECT_EQ(matrix.total(), 0);
}

TEST(ConfusionMatrix, RefusesClassesThatAreNotThere) {
  ConfusionMatrix matrix(3);
  const std::string message = testing::message_of<ConfigError>([&] { matrix.add(1, 3); });
  EXPECT_NE(message.find("from 0 to 2"), std::string::npos) << message;
  EXPECT_NE(message.find("prediction 3"), std::string::npos) << message;
  EXPECT_THROW(matrix.add(-1, 0), ConfigError);
  EXPECT_THROW(matrix.of_class(3), ConfigError);
  EXPECT_THROW(ConfusionMatrix(0), ConfigError);
}

TEST(ConfusionMatrix, TableHasALineForEachClassAndTheAverage) {
  ConfusionMatrix matrix(2);
  matrix.add(0, 0, 30);
  matrix.add(0, 1, 10);
  matrix.add(1, 1, 60);
  EXPECT_EQ(matrix.to_string(),
            " target   0   1  precision     recall         F1    samples\n"
            "      0  30  10   100.00 %    75.00 %    85.71 %         40\n"
            "      1   0  60    85.71 %   100.00 %    92.31 %         60\n"
            "average            92.86 %    87.50 %    89.01 %        100\n");
  // Of many classes, the scores alone: a line stays readable.
  const std::string many = ConfusionMatrix(1000).to_string();
  EXPECT_LT(many.find('\n'), 100u);
}

TEST(ConfusionMatrix, TableShowsTheNamesOfClasses) {
  ConfusionMatrix matrix(2);
  matrix.add(0, 0, 30);
  matrix.add(0, 1, 10);
  matrix.add(1, 1, 60);
  EXPECT_EQ(matrix.to_string({"no", "peut-\xc3\xaatre"}),
            "   target         no  peut-\xc3\xaatre  precision     recall         F1    samples\n"
            "       no         30         10   100.00 %    75.00 %    85.71 %         40\n"
            "peut-\xc3\xaatre          0         60    85.71 %   100.00 %    92.31 %         60\n"
            "  average                          92.86 %    87.50 %    89.01 %        100\n");
  EXPECT_THROW(matrix.to_string({"one"}), ConfigError);
}

TEST(ConfusionMatrix, LongNamesAreCutAndTheirClassesNumberedWhereTheyWouldBeTheSame) {
  const ConfusionMatrix matrix(2);
  const std::string letters(40, 'x');
  const auto lines = [&](const std::vector<std::string>& names) {
    std::istringstream in(matrix.to_string(names));
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) {
      all.push_back(line);
    }
    return all;
  };
  const auto apart = lines({"a" + letters, "b\n" + letters});
  ASSERT_EQ(apart.size(), 4U);
  EXPECT_EQ(apart[0].find("                  target  axxxxxxxx...  b\\x0axxxx...  precision"), 0U)
      << apart[0];
  EXPECT_EQ(apart[1].find("axxxxxxxxxxxxxxxxxxxx...  "), 0U) << apart[1];
  const auto alike = lines({letters + "a", letters + "b"});
  EXPECT_EQ(alike[0].find("                    target  0  1  precision"), 0U) << alike[0];
  EXPECT_EQ(alike[1].find("0 xxxxxxxxxxxxxxxxxxxxx...  0  0  "), 0U) << alike[1];
  EXPECT_EQ(alike[2].find("1 xxxxxxxxxxxxxxxxxxxxx...  0  0  "), 0U) << alike[2];
}

TEST(ConfusionMatrix, ColumnsThatWouldBeTooWideHaveNumbers) {
  std::vector<std::string> names;
  for (int i = 0; i < 30; ++i) {
    names.push_back("class number " + std::to_string(i));
  }
  const std::string table = ConfusionMatrix(30).to_string(names);
  EXPECT_LT(table.find('\n'), 200U);
  EXPECT_NE(table.find("29 class number 29 "), std::string::npos) << table;
  // Of more classes no counts are shown: their names are enough.
  names.push_back("last");
  EXPECT_NE(ConfusionMatrix(31).to_string(names).find("\n           last     0.00 %"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
