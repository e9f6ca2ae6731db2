// What is said about a result.

#include "trireme/train/training_report.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TrainResult fold_with(const std::map<std::string, double>& metrics) {
  TrainResult fold;
  fold.evaluation.metrics = metrics;
  return fold;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// Student's t with one degree of freedom has 97.5 % below tan(0.475 pi) = 12.7062, with two below
// 4.30265: of two or three folds that reaches beyond what a share, or a perplexity, can be.
TEST(FoldsTable, IntervalsHoldOnlyWhatAMetricCanBe) {
  const std::string two =
      folds_table({fold_with({{"accuracy", 0.4}, {"perplexity", 20}, {"loss", 3}}),
                   fold_with({{"accuracy", 0.9}, {"perplexity", 80}, {"loss", 4.5}})});
  expect_part(two, "65.00 % (95 % interval 0.00 % to 100.00 %; folds 40.00 %, 90.00 %)");
  expect_part(two, "50.0000 (95 % interval 1.0000 to 431.1861;");
  expect_part(two, "3.7500 (95 % interval 0.0000 to 13.2797;");
  const std::string three =
      folds_table({fold_with({{"loss", 5}}), fold_with({{"loss", 6}}), fold_with({{"loss", 7}})});
  expect_part(three, "6.0000 (95 % interval 3.5159 to 8.4841;");
}

// Ctrl-C in the second fold: one number has no spread to tell its chance by.
TEST(FoldsTable, OneFoldHasNoInterval) {
  TrainResult interrupted;
  interrupted.status = TrainResult::Status::kInterrupted;
  const std::string table = folds_table({fold_with({{"accuracy", 0.4}}), interrupted});
  expect_part(table, "2 folds, 1 of them evaluated");
  expect_part(table, "40.00 % (one fold: ");
  EXPECT_EQ(table.find("interval"), std::string::npos) << table;
}

}  // namespace
}  // namespace trireme
