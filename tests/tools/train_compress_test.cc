// trireme train --compress: the same run for any number of ranks and any stage, also when it is
// ended and started again.

#include "tools/train_runs.h"

namespace trireme::train_compress_test {
namespace {

using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::read_file;
using testing::Words;

class TrainCompress : public testing::TrainRuns {
 protected:
  std::string weights(const std::string& run) const {
    return read_file(path(run) + "/model.safetensors");
  }
};

TEST_F(TrainCompress, GivesTheSameRunForAnyNumberOfRanks) {
  const std::string settings =
      gpt() + "--steps 6 --schedule constant --optimizer sgd --momentum 0 --compress ";
  const Words exact = train_well("exact", settings + "none");
  for (const std::string name : {"int8", "topk:0.1:0.5", "powersgd:2"}) {
    const Words alone = train_well("alone-" + name, settings + name);
    EXPECT_NE(alone, exact);
    EXPECT_EQ(train_well("three-" + name, settings + name + " -n 3 --zero 2"), alone);
    EXPECT_EQ(weights("three-" + name), weights("alone-" + name));
    // Ended after 3 steps by two ranks, taken up by three, at another stage.
    train_well("halves-" + name, settings + name + " -n 2 --steps 3 --save-every 3 --zero 1");
    const Finished more =
        train("halves-" + name, settings + name + " -n 3 --save-every 3 --zero 3 --allow-changes");
    EXPECT_EQ(more.code, 0) << more.out << more.err;
    EXPECT_EQ(weights("halves-" + name), weights("alone-" + name));
  }
  const Json use = summary("three-int8").at("compression");
  EXPECT_GT(use.at("exact_bytes").get<double>(), 2 * use.at("sent_bytes").get<double>());
  EXPECT_FALSE(summary("alone-int8").contains("compression"));  // nothing was sent
  const Json vectors = summary("three-powersgd:2").at("compression").at("exact_parameters");
  EXPECT_NE(std::find(vectors.begin(), vectors.end(), "block0.norm1.bias"), vectors.end())
      << vectors;
  std::int64_t sent = 0;
  for (const Json& line : testing::read_json_lines(path("three-int8") + "/metrics.jsonl")) {
    sent += line.value("sent_bytes", std::int64_t{0});
  }
  EXPECT_EQ(sent, use.at("sent_bytes").get<std::int64_t>());
  // Without the compressor, the state is another one.
  const Finished other = train("halves-int8", settings + "bf16 --steps 9 -n 2");
  EXPECT_EQ(other.code, 2);
  expect_parts(other.err, {"compress", "int8", "bf16"});
}

// Every second step, with the same losses as without.
TEST_F(TrainCompress, RecordsHowFarTheSumIsFromTheExactOne) {
  const std::string settings = gpt() + "--steps 5 --schedule constant -n 2 --compress int8 ";
  const Words without = train_well("without", settings);
  EXPECT_EQ(train_well("with", settings + "--compress-check 2"), without);
  std::vector<std::int64_t> checked;
  for (const Json& line : testing::read_json_lines(path("with") + "/metrics.jsonl")) {
    if (line.contains("compress_error")) {
      checked.push_back(line.at("step").get<std::int64_t>());
      // Half a step of 127 for the largest element, and for the others no more.
      EXPECT_GT(line.at("compress_error").get<double>(), 1e-4);
      EXPECT_LT(line.at("compress_error").get<double>(), 0.1);
      EXPECT_GT(line.at("compress_cosine").get<double>(), 0.99);
      EXPECT_NEAR(line.at("compress_descent").get<double>(), 1, 0.05);
    }
  }
  EXPECT_EQ(checked, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(summary("with").at("compression").at("check").at("step"), 4);
  EXPECT_FALSE(summary("without").at("compression").contains("check"));
}

TEST_F(TrainCompress, RoundsWeightsAlikeForAnyNumberOfRanks) {
  const std::string settings =
      gpt() + "--steps 6 --schedule constant --round-weights int8 --save-every 6 ";
  const Words exact = train_well("exact", gpt() + "--steps 6 --schedule constant");
  const Words alone = train_well("alone", settings);
  EXPECT_NE(alone, exact);
  EXPECT_EQ(train_well("two", settings + "-n 2 --zero 3 --placement copied"), alone);
  EXPECT_EQ(train_well("three", settings + "-n 3 --zero 2"), alone);
  EXPECT_EQ(weights("two"), weights("alone"));
  EXPECT_EQ(weights("three"), weights("alone"));
  EXPECT_NE(weights("alone").find(R"("rounded":"int8")"), std::string::npos);
  // Ended after 3 steps by two ranks, taken up by three, at another stage.
  train_well("halves", settings + "-n 2 --steps 3 --save-every 3 --zero 1");
  EXPECT_EQ(train("halves", settings + "-n 3 --zero 3 --allow-changes").code, 0);
  EXPECT_EQ(weights("halves"), weights("alone"));
  const Json use = summary("three").at("rounded_weights");
  EXPECT_GT(use.at("exact_bytes").get<double>(), 3 * use.at("received_bytes").get<double>());
  EXPECT_FALSE(summary("alone").contains("rounded_weights"));  // nothing was sent
}

TEST_F(TrainCompress, PrunesTheSameWeightsForAnyNumberOfRanks) {
  const std::string settings = gpt() + "--steps 6 --schedule constant --save-every 6 " +
                               "--prune 0.8 --prune-begin 1 --prune-end 5 --prune-every 2 ";
  const Words exact = train_well("exact", gpt() + "--steps 6 --schedule constant");
  const Words alone = train_well("alone", settings);
  EXPECT_NE(alone, exact);
  EXPECT_EQ(train_well("two", settings + "-n 2 --zero 3 --placement copied"), alone);
  EXPECT_EQ(weights("two"), weights("alone"));
  // Ended by two ranks after 3 steps, and taken up by three at another stage.
  train_well("halves", settings + "-n 2 --steps 3 --save-every 3 --zero 1");
  EXPECT_EQ(train("halves", settings + "-n 3 --zero 3 --allow-changes").code, 0);
  EXPECT_EQ(weights("halves"), weights("alone"));
  const double pruned = summary("halves").at("pruned");
  EXPECT_NEAR(pruned, 0.8, 0.001);
  EXPECT_FALSE(summary("exact").contains("pruned"));
}

TEST_F(TrainCompress, CountsAllPartsOfARun) {
  const std::string settings =
      gpt() + "--schedule constant -n 2 --compress int8 --compress-check 2 --save-every 4 ";
  train_well("parts", settings + "--steps 4");
  const std::string whole = settings + "--steps 8 --allow-changes";
  EXPECT_EQ(train("parts", whole).code, 0);
  std::int64_t sent = 0;
  for (const Json& line : testing::read_json_lines(path("parts") + "/metrics.jsonl")) {
    sent += line.value("sent_bytes", std::int64_t{0});
  }
  const Json use = summary("parts").at("compression");
  EXPECT_EQ(use.at("sent_bytes"), sent);
  EXPECT_EQ(use.at("check").at("step"), 8);
  // Nothing is left to do.
  EXPECT_EQ(train("parts", whole).code, 0);
  EXPECT_EQ(summary("parts").at("compression"), use);
}

TEST_F(TrainCompress, KeepsItsMicroBatchesWhereItKeepsWhatItLeavesOut) {
  const Finished finished =
      train("small", gpt() + "--steps 2 -n 2 --compress sign --memory-limit 600");
  EXPECT_EQ(finished.code, 2);
  expect_parts(finished.err, {"sign keeps what it leaves out", "smaller --micro-batch"});
  EXPECT_EQ((finished.out + finished.err).find("continuing with"), std::string::npos);
}

TEST_F(TrainCompress, SaysWhatAutoComesTo) {
  const Finished automatic = train("auto", gpt() + "--steps 2 -n 2 --compress auto");
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  expect_parts(automatic.out + automatic.err,
               {"compress auto: none, since all ranks are on one machine"});
  EXPECT_EQ(testing::parse_json(read_file(path("auto") + "/config.json")).at("compress"), "none");
  // A run goes on with what it began with.
  const std::string settings = gpt() + "--schedule constant -n 2 --save-every 2 ";
  train_well("whole", settings + "--compress int8 --steps 4");
  train_well("halves", settings + "--compress int8 --steps 2");
  const Finished more = train("halves", settings + "--compress auto --steps 4 --allow-changes");
  EXPECT_EQ(more.code, 0) << more.err;
  expect_parts(more.out + more.err, {"compress auto: int8, since the run began with it"});
  EXPECT_EQ(weights("halves"), weights("whole"));
  const Finished asked = train("asked", gpt() + "--steps 2 -n 2 --compress sign");
  EXPECT_EQ(asked.code, 0) << asked.err;
  expect_parts(asked.out + asked.err,
               {"sign saves nothing", "warning: sign and adamw", "compressed gradients"});
}

TEST_F(TrainCompress, RefusesByName) {
  const std::pair<std::string, Words> wrong[] = {
      {"--compress int4", {"compress: expected one of bf16", "found \"int4\""}},
      {"--compress topk:2", {"topk keeps a fraction above 0 and at most 1, found 2"}},
      {"--compress sign --precision float16", {"compress: sign", "loss scale", "bfloat16"}},
      {"--compress sign --balance measured", {"compress: sign", "balance"}},
      {"--compress sign --micro-batch auto", {"compress: sign", "micro_batch = auto"}},
      {"--compress-check 3", {"--compress-check: expected 0", "compress = none", "found 3"}},
      {"--round-weights int4", {"round-weights: expected none, int8, bf16", "found \"int4\""}},
      {"--round-weights int8 --precision bfloat16", {"round-weights", "bfloat16", "autocast"}},
      {"--round-weights int8 -n 2 --sync stale --staleness 1", {"round-weights", "sync = stale"}},
      {"--prune 1", {"prune: expected", "found 1"}},
      {"--prune 0.5 --prune-begin 9 --prune-end 3",
       {"prune-end: expected 0 or a step that is not before prune_begin (9), found 3"}},
      {"--prune 0.5 -n 2 --sync local", {"prune", "sync = local"}},
      {"--prune 0.5 -n 2 --sync stale --staleness 1", {"prune", "sync = stale"}},
      {"--compress powersgd:0", {"powersgd has a rank", "found 0"}},
      {"--compress powersgd:500", {"powersgd:500", "expected a matrix", "largest parameter"}},
      {"--compress topk:0.1:0.9", {"topk:0.1:0.9", "--optimizer sgd --momentum 0"}}};
  for (const auto& [flags, parts] : wrong) {
    const Finished finished = train("wrong", gpt() + "--steps 2 " + flags);
    EXPECT_EQ(finished.code, 2) << flags << finished.out << finished.err;
    expect_parts(finished.err, parts);
  }
}

}  // namespace
}  // namespace trireme::train_compress_test
