// What is said about a result.

#include "trireme/train/training_report.h"

#include <cmath>

#include <gtest/gtest.h>

namespace trireme::training_report_test {
namespace {

TrainResult fold_with(const std::map<std::string, double>& metrics) {
  TrainResult fold;
  fold.evaluation.metrics = metrics;
  return fold;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(FoldsTable, ManyFoldsAreARange) {
  std::vector<TrainResult> folds;
  for (int i = 1; i <= 11; ++i) {
    folds.push_back(fold_with({{"accuracy", i / 100.0}}));
  }
  expect_part(folds_table(folds), "; folds from 1.00 % to 11.00 %)");
  EXPECT_EQ(folds_table(folds).find("7.00 %"), std::string::npos);
  folds.pop_back();
  expect_part(folds_table(folds), "7.00 %, 8.00 %, 9.00 %, 10.00 %)");
}

// 90 steps at 100 per second take three times as long as 90 at 300.
TEST(FoldsJson, TheThroughputIsAllWorkDividedByAllTime) {
  TrainResult slow = fold_with({{"loss", 1}});
  slow.steps = 100;
  slow.untimed_steps = 10;
  slow.per_second = 100;
  TrainResult fast = slow;
  fast.per_second = 300;
  expect_part(folds_json({}, {slow, fast}), "\"per_second\": 150.0");
}

// A second of which 10 % went by, and three of which 50 % did: 1.6 of 4 seconds.
TEST(FoldsJson, SharesAreOfTheTimeOfAllFolds) {
  TrainResult quick = fold_with({{"loss", 1}});
  quick.seconds = 1;
  quick.loss = 2;
  for (double TrainResult::*share : {&TrainResult::communication_share,
                                     &TrainResult::data_share,
                                     &TrainResult::record_share,
                                     &TrainResult::save_share,
                                     &TrainResult::processor_share}) {
    quick.*share = 0.1;
    TrainResult slow = quick;
    slow.seconds = 3;
    slow.loss = 4;
    slow.*share = 0.5;
    const std::string json = folds_json({}, {quick, slow});
    expect_part(json, "_share\": 0.4");
    expect_part(json, "\"training_loss\": 3.0");
    EXPECT_EQ(json.find("evaluated_step"), std::string::npos) << json;
  }
}

// Student's t with one degree of freedom has 97.5 % below tan(0.475 pi) = 12.7062, with two below
// 4.30265: of two or three folds that reaches beyond what a share, or a perplexity, can be.
TEST(FoldsTable, IntervalsHoldOnlyWhatAMetricCanBe) {
  const std::string two =
      folds_table({fold_with({{"accuracy", 0.4}, {"perplexity", 20}, {"loss", 3}}),
                   fold_with({{"accuracy", 0.9}, {"perplexity", 80}, {"loss", 4.5}})});
  expect_part(two, "65.00 % (95 % interval 0.00 % to 100.00 %; folds 40.00 %, 90.00 %)");
  expect_part(two, "50.000 (95 % interval 1.0000 to 431.19;");
  expect_part(two, "3.7500 (95 % interval 0.0000 to 13.280;");
  const std::string three =
      folds_table({fold_with({{"loss", 5}}), fold_with({{"loss", 6}}), fold_with({{"loss", 7}})});
  expect_part(three, "6.0000 (95 % interval 3.5159 to 8.4841;");
}

// Ctrl-C in the second fold: one number has no spread to tell its chance by.
TEST(FoldsTable, OneFoldHasNoInterval) {
  TrainResult interrupted;
  interrupted.status = TrainResult::Status::kInterrupted;
  const std::string table = folds_table({fold_with({{"accuracy", 0.4}}), interrupted});
  expect_part(table, "interrupted in fold 2: 1 fold finished");
  expect_part(table, "40.00 % (one fold: ");
  EXPECT_EQ(table.find("interval"), std::string::npos) << table;
}

// Nor have folds that are all alike, however good they are; 0.1 + 0.2 and 0.3 are alike, too.
TEST(FoldsTable, FoldsWithoutSpreadHaveNoInterval) {
  const std::string table =
      folds_table({fold_with({{"accuracy", 1}, {"loss", 0.1 + 0.2}, {"f1", 0.9}}),
                   fold_with({{"accuracy", 1}, {"loss", 0.3}, {"f1", 0.8}})});
  expect_part(table, "100.00 % (the same in all 2 folds: its uncertainty is unknown)");
  expect_part(table, "0.3000 (the same in all 2 folds: ");
  expect_part(table, "85.00 % (95 % interval ");
}

// Of one sample per fold, errors of 3 and 4: the root of the mean of their squares is sqrt(12.5),
// and not the mean error. To first order a fold adds (e^2 / root + root) / 2 to it: 3.04056 and
// 4.03051, whose half difference is 0.49497; Student's t with one degree of freedom has 97.5 %
// below 12.7062.
TEST(FoldsTable, TheRmseIsThatOfAllSamples) {
  const std::vector<TrainResult> folds = {fold_with({{"mae", 3}, {"rmse", 3}}),
                                          fold_with({{"mae", 4}, {"rmse", 4}})};
  const std::string table = folds_table(folds);
  expect_part(table, "3.5000 (95 % interval 0.0000 to 9.8531; folds 3.0000, 4.0000)");
  expect_part(table, "3.5355 (95 % interval 0.0000 to 9.8248; folds 3.0000, 4.0000)");
  const std::string json = folds_json({}, folds);
  expect_part(json, "\"rmse\": 3.53553390");
  expect_part(json, "\"mae\": 3.5");
}

TEST(FoldsTable, SaysThatMeansOverFoldsOfFewSamplesAreBiased) {
  TrainResult fold = fold_with({{"accuracy", 0.5}, {"f1", 0.4}});
  fold.evaluation.evaluated = 30;
  TrainResult small = fold;
  EXPECT_EQ(folds_table({fold, small}).find("note"), std::string::npos);
  small.evaluation.evaluated = 29;
  expect_part(folds_table({fold, small}), "means over folds, of as few as 29 samples");
  // There is nothing of the kind about an error.
  TrainResult error = fold_with({{"mae", 0.5}});
  error.evaluation.evaluated = 1;
  EXPECT_EQ(folds_table({error, error}).find("note"), std::string::npos);
}

TEST(FoldsTable, SaysInHowManyFoldsTheGoalWasReached) {
  TrainSettings settings;
  settings.goal = "accuracy:0.9";
  TrainResult reached = fold_with({{"accuracy", 0.92}});
  reached.goal_step = 12;
  reached.memory.ranks.resize(1);
  const TrainResult missed = fold_with({{"accuracy", 0.8}});
  TrainResult interrupted = reached;
  interrupted.status = TrainResult::Status::kInterrupted;
  const std::vector<TrainResult> folds = {reached, missed, reached, interrupted};
  expect_part(folds_table(folds, settings.goal), "reached in 2 of 3 folds");
  EXPECT_EQ(folds_table(folds).find("goal"), std::string::npos);
  expect_part(folds_json(settings, folds), "\"reached\": 2");
  EXPECT_EQ(folds_json({}, folds).find("\"reached\""), std::string::npos);
  // As a fold that was finished before an interruption tells it.
  const auto read = result_in_summary(summary_json(settings, reached));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->goal_step, 12);
}

// What it was evaluated to on the way is no result.
TEST(FoldsTable, AFoldThatWasInterruptedDoesNotCount) {
  TrainResult interrupted = fold_with({{"accuracy", 0.9}});
  interrupted.status = TrainResult::Status::kInterrupted;
  const std::string none = folds_table({interrupted});
  expect_part(none, "interrupted in fold 1: no fold finished");
  EXPECT_EQ(none.find("accuracy"), std::string::npos) << none;
  const TrainResult first = fold_with({{"accuracy", 0.4}});
  const TrainResult second = fold_with({{"accuracy", 0.6}});
  const std::string two = folds_table({first, second, interrupted});
  expect_part(two, "interrupted in fold 3: 2 folds finished");
  expect_part(two, "50.00 % (95 % interval ");
  EXPECT_EQ(two.find("90.00"), std::string::npos) << two;
  const std::string json = folds_json({}, {first, second, interrupted});
  EXPECT_EQ(json.find("0.9"), std::string::npos) << json;
  expect_part(json, "\"accuracy\": 0.5");
}

// What one machine's ranks exchange is not sent.
TEST(SummaryTable, NamesAllBatchesAndHowGradientsWent) {
  TrainSettings settings;
  settings.batch = 8;
  settings.batch_schedule = {"50:16", "80:32"};
  settings.compress = "bf16";
  settings.sync = Synchronisation::kLocal;
  TrainResult result;
  result.steps = 100;
  result.micro_batch = 2;
  result.compression.sent_bytes = 1;
  result.machines = 1;
  const std::string one = summary_table(settings, result);
  expect_part(one, ", batch 8 (16 after step 50, 32 after step 80) of micro-batches of 2\n");
  EXPECT_EQ(one.find("sent"), std::string::npos) << one;
  settings.batch_schedule.clear();
  result.machines = 2;
  const std::string two = summary_table(settings, result);
  expect_part(two, ", batch 8 of micro-batches of 2\n");
  expect_part(two, " sent by a rank instead of ");
}

// What a cross-validation that goes on reads of the folds that had ended: every bit counts.
TEST(Summary, HasTheResultThatItWasWrittenOf) {
  TrainResult result;
  result.status = TrainResult::Status::kStoppedEarly;
  result.steps = 70;
  result.seconds = 1.0 / 3;
  result.loss = 0.1 + 0.2;
  result.evaluation.metrics = {{"accuracy", 2.0 / 3}, {"loss", std::nan("")}};
  result.evaluation.samples = {{1, 1, 0.5}};
  result.evaluation.fingerprint = 0xfedcba9876543210;
  result.counts_tokens = true;
  result.per_second = 1e5 / 7;
  result.untimed_steps = 7;
  result.communication_share = 1.0 / 7;
  result.micro_batch = 4;
  result.tensor_bytes = 123;
  result.memory.ddp_bytes = 1000;
  result.memory.ranks.resize(2);
  result.memory.ranks[1].now = {1, 2, 3, 4, 5, 6, 7, 8};
  result.machines = 2;
  result.sum_group = 3;
  result.data_fingerprint = 0xba9876543210;
  result.rank_changes = {3, 4, 1, 2, 5};
  result.steps_by_ranks = {{1, 40, 2}, {41, 70, 3}};
  const std::string text = summary_json({}, result);
  const auto read = result_in_summary(text);
  ASSERT_TRUE(read) << text;
  EXPECT_EQ(read->status, result.status);
  EXPECT_EQ(read->steps, 70);
  EXPECT_EQ(read->seconds, 1.0 / 3);
  EXPECT_EQ(read->loss, 0.1 + 0.2);
  EXPECT_EQ(read->evaluation.metrics.at("accuracy"), 2.0 / 3);
  EXPECT_TRUE(std::isnan(read->evaluation.metrics.at("loss")));
  EXPECT_EQ(read->evaluation.fingerprint, 0xfedcba9876543210);
  EXPECT_TRUE(read->counts_tokens);
  EXPECT_EQ(read->per_second, 1e5 / 7);
  EXPECT_EQ(read->untimed_steps, 7);
  EXPECT_EQ(read->communication_share, 1.0 / 7);
  EXPECT_EQ(read->micro_batch, 4);
  EXPECT_EQ(read->tensor_bytes, 123);
  EXPECT_EQ(read->memory.ddp_bytes, 1000);
  EXPECT_EQ(read->memory.ranks.at(0).now, result.memory.ranks[1].now) << "the rank with most";
  EXPECT_EQ(read->machines, 2);
  EXPECT_EQ(read->sum_group, 3);
  EXPECT_EQ(read->data_fingerprint, 0xba9876543210u);
  EXPECT_EQ(read->rank_changes.times, 3);
  EXPECT_EQ(read->rank_changes.lost, 4);
  EXPECT_EQ(read->rank_changes.left, 1);
  EXPECT_EQ(read->rank_changes.joined, 2);
  EXPECT_EQ(read->rank_changes.steps_again, 5);
  ASSERT_EQ(read->steps_by_ranks.size(), 2U);
  EXPECT_EQ(read->steps_by_ranks[1].from, 41);
  EXPECT_EQ(read->steps_by_ranks[1].to, 70);
  EXPECT_EQ(read->steps_by_ranks[1].ranks, 3);
  expect_part(text, "\"ranks\": 3");
}

// As many parts as an elastic job may have had are no line.
TEST(SummaryTable, SaysWhichStepsWereTakenWithHowManyRanks) {
  TrainSettings settings;
  settings.ranks = 5;
  settings.zero = 1;
  TrainResult result;
  result.steps = 41;
  result.steps_by_ranks = {{1, 41, 4}};
  expect_part(summary_table(settings, result), "  4, ZeRO-1, float32\n");
  expect_part(summary_json(settings, result), "\"ranks\": 4");
  EXPECT_EQ(summary_json(settings, result).find("steps_by_ranks"), std::string::npos);
  result.steps_by_ranks = {{1, 40, 4}, {41, 41, 3}};
  expect_part(summary_table(settings, result), "  4 in steps 1 to 40, 3 in step 41, ZeRO-1");
  for (std::int64_t step = 42; step < 60; ++step) {
    result.steps_by_ranks.push_back({step, step, 3 + step % 2});
  }
  expect_part(summary_table(settings, result),
              "  4 in the last of 20 parts (summary.json), ZeRO-1");
}

// Ctrl-C in an evaluation: what is shown is of the one before, and says so.
TEST(Summary, SaysAfterWhichStepItWasEvaluated) {
  TrainResult result = fold_with({{"loss", 3}});
  result.steps = 40;
  result.evaluated_step = 20;
  expect_part(summary_table({}, result), "after step 20, and not after the last one");
  expect_part(summary_json({}, result), "\"evaluated_step\": 20");
  result.evaluated_step = 40;
  EXPECT_EQ(summary_table({}, result).find("after step"), std::string::npos);
}

// Such a fold is trained again.
TEST(Summary, OfATrainingThatDidNotEndHasNoResult) {
  TrainResult interrupted;
  interrupted.status = TrainResult::Status::kInterrupted;
  const std::string whole = summary_json({}, {});
  for (const std::string& text : {summary_json({}, interrupted),
                                  whole.substr(0, whole.size() / 2),
                                  std::string(),
                                  std::string("[]"),
                                  std::string(R"({"status": "failed", "reason": "killed"})"),
                                  std::string(R"({"status": "finished"})"),
                                  std::string(R"({"status": 3})"),
                                  std::string(100000, '[')}) {
    EXPECT_FALSE(result_in_summary(text)) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace trireme::training_report_test
