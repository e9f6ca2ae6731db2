// trireme train --sync: replicas that are averaged now and then, in a run as in any other.

#include "tools/train_runs.h"

namespace trireme::train_sync_test {
namespace {

using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::read_file;
using testing::Words;

class TrainSync : public testing::TrainRuns {
 protected:
  std::string weights(const std::string& run) const {
    return read_file(path(run) + "/model.safetensors");
  }
  std::string settings(const std::string& sync) const {
    return gpt() + "--batch 16 --steps 10 --schedule constant -n 2 --eval-every 5 --sync " + sync;
  }
};

// The last steps are on their own: what is evaluated and kept is the mean.
TEST_F(TrainSync, GivesTheSameRunAtAnyStageAndWhenItIsStartedAgain) {
  std::vector<std::string> all;
  for (const std::string sync : {"local --sync-every 4 -n 4 --sync-group 2",
                                 "diloco --sync-every 4",
                                 "gossip --sync-every 4 --sync-graph random --sync-states"}) {
    const std::string name = sync.substr(0, sync.find(' '));
    const Finished finished = train(name, settings(sync));
    EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
    expect_parts(finished.out + finished.err,
                 {name + ": 2 averagings of 2 replicas", "passed on by a rank in memory"});
    EXPECT_EQ(std::ranges::find(all, weights(name)), all.end()) << sync;
    all.push_back(weights(name));
    // Ended after 6 steps, two after an averaging, and taken up at another stage.
    train_well(name + "-half", settings(sync) + " --steps 6 --save-every 6 --zero 3");
    train_well(name + "-half", settings(sync) + " --save-every 6 --zero 1 --allow-changes");
    EXPECT_EQ(weights(name + "-half"), weights(name)) << sync;
    const Json use = summary(name).at("averaging");
    EXPECT_EQ(use.at("mode"), name);
    EXPECT_EQ(use.at("averagings"), 2);
    EXPECT_EQ(use.at("replicas"), 2);
    std::int64_t sent = 0;
    for (const Json& line : testing::read_json_lines(path(name) + "/metrics.jsonl")) {
      sent += line.value("sent_bytes", std::int64_t{0});
    }
    EXPECT_GT(sent, 0);
    EXPECT_LE(sent, use.at("sent_bytes").get<std::int64_t>());
  }
}

// Statistics of batches, and how many there were, are in the weights.
TEST_F(TrainSync, BatchNormsGoOnWhereTheyWere) {
  const std::string sync =
      convnet() + "--batch 16 --schedule constant -n 2 --sync local --sync-every 4 ";
  train_well("whole", sync + "--steps 10");
  train_well("half", sync + "--steps 6 --save-every 6");
  train_well("half", sync + "--steps 10 --save-every 6 --allow-changes");
  EXPECT_NE(weights("whole").find("num_batches_tracked"), std::string::npos);
  EXPECT_EQ(weights("half"), weights("whole"));
}

// What the launcher keeps of replicas takes no exchange between them, and is what they go on from.
TEST_F(TrainSync, OutlivesALossAndSendsNothingForThat) {
  const std::string sync = settings("local --sync-every 4");
  train_well("calm", sync);
  train_well("kept", sync + " --restart 1");
  EXPECT_EQ(weights("kept"), weights("calm"));
  EXPECT_EQ(summary("kept").at("averaging").at("sent_bytes"),
            summary("calm").at("averaging").at("sent_bytes"));
  train_well("lost", sync + " --restart 9 --drill kill:p=0.3 --drill-seed 3");
  EXPECT_EQ(weights("lost"), weights("calm"));
  EXPECT_NE(read_file(path("lost") + "/drill.json").find("\"recovered\""), std::string::npos);
}

// Every step of an exact run was together; what is left of it is too short for its first averaging.
TEST_F(TrainSync, SaysThatWhatIsLeftIsTooShortForAnAveraging) {
  train_well("run", settings("exact") + " --steps 7 --save-every 7");
  const std::string loose = settings("local --sync-every 4") + " --save-every 10 --allow-changes";
  const Finished finished = train("run", loose);
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out,
               {"warning: the first averaging comes after step 11, but the run has 10 steps, of "
                "which 3 are left: its replicas are never averaged"});
  train_well("more", settings("exact") + " --steps 6 --save-every 6");
  EXPECT_EQ(train("more", loose).out.find("never averaged"), std::string::npos);
  EXPECT_EQ(summary("more").at("averaging").at("averagings"), 1);
}

// With one replica there is nothing to average: all is exact.
TEST_F(TrainSync, OneReplicaIsExact) {
  train_well("exact", settings("exact"));
  const Finished one = train("one", settings("local --sync-group 2"));
  expect_parts(one.out, {"warning: sync is local, but there is one replica: nothing is averaged"});
  EXPECT_EQ(one.out.find("replicas are"), std::string::npos) << one.out;
  EXPECT_EQ(weights("one"), weights("exact"));
  EXPECT_FALSE(summary("exact").contains("averaging"));
  train_well("machine", settings("local --sync-group machine --sync-every 3"));
  EXPECT_EQ(weights("machine"), weights("exact"));
}

// Post-local SGD: first exact, then replicas; and not on another number of them.
TEST_F(TrainSync, GoesOnFromAnExactRun) {
  train_well("post", settings("exact") + " --steps 4 --save-every 4");
  const Finished refused = train("post", settings("local --sync-every 2 --save-every 4"));
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"sync", "exact", "local"});
  const Finished local =
      train("post", settings("local --sync-every 2 --save-every 4 --allow-changes"));
  EXPECT_EQ(local.code, 0) << local.out << local.err;
  EXPECT_EQ(summary("post").at("averaging").at("averagings"), 3);
  const Finished more = train(
      "post", settings("local --sync-every 2 --save-every 4 --steps 12 -n 4 --allow-changes"));
  EXPECT_EQ(more.code, 2) << more.out << more.err;
  expect_parts(more.err, {"one of 2 replicas, found 4"});
}

// A schedule of replicas is nothing to a run that goes on without them.
TEST_F(TrainSync, GoesOnExactlyAfterPhases) {
  train_well("phased",
             settings("local --sync-every 2 --sync-schedule 0:exact,3:2 --steps 4 --save-every 2 "
                      "--keep-last 0"));
  const Finished exact = train("phased", "--resume 2 --sync exact --allow-changes");
  EXPECT_EQ(exact.code, 0) << exact.out << exact.err;
  EXPECT_EQ(exact.out.find("gossip"), std::string::npos) << exact.out;
  EXPECT_FALSE(summary("phased").contains("averaging"));
  train_well("plain", settings("exact --steps 4"));
  EXPECT_EQ(weights("phased"), weights("plain"));
}

// Exact up to a step, then replicas, then exact again: as one run, and as a run that is resumed in
// each of its phases.
TEST_F(TrainSync, HasExactPhases) {
  const std::string phases = settings("local --sync-every 3 --sync-schedule 0:exact,4:2,7:exact");
  train_well("exact", settings("exact") + " --steps 4 --save-every 4");
  train_well("begun", phases + " --steps 4 --save-every 4");
  EXPECT_EQ(weights("begun"), weights("exact"));
  const Finished whole = train("whole", phases);
  EXPECT_EQ(whole.code, 0) << whole.err;
  expect_parts(whole.out,
               {"step 4: exact to local 2; by the schedule",
                "step 7: local 2 to exact; by the schedule",
                "phases",
                "0:exact,4:2,7:exact"});
  EXPECT_EQ(summary("whole").at("averaging").at("phases"), "0:exact,4:2,7:exact");
  EXPECT_EQ(summary("whole").at("averaging").at("changes"),
            Json({"step 4: exact to local 2; by the schedule",
                  "step 7: local 2 to exact; by the schedule"}));
  EXPECT_EQ(summary("whole").at("averaging").at("averagings"), 2);  // one of them at the end
  EXPECT_NE(weights("whole"), weights("exact"));
  std::vector<std::int64_t> every;
  for (const Json& line : testing::read_json_lines(path("whole") + "/metrics.jsonl")) {
    if (line.contains("averaged_every")) {
      every.push_back(line.at("averaged_every").get<std::int64_t>());
    }
  }
  EXPECT_EQ(every, (std::vector<std::int64_t>{0, 0, 0, 0, 2, 2, 2, 0, 0, 0}));
  // The same with another stage for each part, and from what an exact run has saved.
  for (const std::string first : {"3", "5", "8"}) {
    train_well(first, phases + " --zero 1 --save-every 20 --steps " + first);
    train_well(first, phases + " --zero 3 --save-every 20 --allow-changes");
    EXPECT_EQ(weights(first), weights("whole")) << first;
    EXPECT_EQ(summary(first).at("averaging").at("averagings"), 2) << first;
    EXPECT_EQ(summary(first).at("averaging").at("changes").size(), 2U) << first;
  }
  train_well("exact", phases + " --save-every 20 --allow-changes");
  EXPECT_EQ(weights("exact"), weights("whole"));
  // Post-local SGD is the same in one command and in two.
  train_well("two", settings("exact") + " --steps 4 --save-every 4");
  train_well("two", settings("local --sync-every 2") + " --save-every 20 --allow-changes");
  train_well("one", settings("local --sync-every 2 --sync-schedule 0:exact,4:2"));
  EXPECT_EQ(weights("one"), weights("two"));
}

// Running statistics, which replicas have of their own in between, and what the launcher keeps.
TEST_F(TrainSync, ExactPhasesHaveBatchNormsAndOutliveALoss) {
  const std::string sync = convnet() +
                           "--batch 16 --schedule constant -n 2 --steps 9 --sync local "
                           "--sync-every 2 --sync-schedule 0:exact,3:2,6:exact ";
  train_well("whole", sync);
  train_well("half", sync + "--steps 4 --save-every 9");
  train_well("half", sync + "--save-every 9 --allow-changes");
  EXPECT_EQ(weights("half"), weights("whole"));
  train_well("lost", sync + " --restart 9 --drill kill:p=0.3 --drill-seed 3");
  EXPECT_EQ(weights("lost"), weights("whole"));
  EXPECT_NE(read_file(path("lost") + "/drill.json").find("\"recovered\""), std::string::npos);
}

// On one machine exchanging costs next to nothing: it stays what it is, with its bits.
TEST_F(TrainSync, AutoIsExactOnOneMachine) {
  train_well("exact", settings("exact"));
  const Finished finished = train("auto", settings("auto --sync-window 2 --sync-group rank"));
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out + finished.err,
               {"sync auto: exact, since all ranks are on one machine"});
  EXPECT_EQ(weights("auto"), weights("exact"));
  EXPECT_EQ(summary("auto").at("averaging").at("phases"), "0:exact");
  // But what is asked for is done.
  train_well("local", settings("auto --sync-group rank --sync-schedule 0:exact,4:2,7:exact"));
  train_well("named", settings("local --sync-schedule 0:exact,4:2,7:exact"));
  EXPECT_EQ(weights("local"), weights("named"));
}

TEST_F(TrainSync, RefusesByName) {
  const std::pair<std::string, Words> wrong[] = {
      {"--sync sometimes", {"--sync: expected exact", "gossip", "sometimes"}},
      {"--sync local --sync-every -1", {"--sync-every: expected", "-1"}},
      {"--sync local --sync-group 3", {"--sync-group: expected a number that divides the 4 ranks"}},
      {"--sync local --sync-group all",
       {"--sync-group: expected auto, rank, machine or a number", "all"}},
      {"--sync local --sync-schedule 5", {"--sync-schedule: expected STEP:STEPS", "\"5\""}},
      {"--sync local --sync-schedule 5:auto", {"STEP:exact", "\"5:auto\""}},
      {"--sync auto --sync-schedule 5:sometimes", {"or STEP:auto", "\"5:sometimes\""}},
      {"--sync local --sync-schedule 0:exact,5:2 --compress sign",
       {"--compress: sign keeps what it leaves out", "exact phases"}},
      {"--sync exact --sync-window 4", {"--sync-window", "but auto does"}},
      {"--sync auto --elastic 2:4", {"--elastic: with --sync auto"}},
      {"--sync local --sync-schedule 5:2,5:3", {"--sync-schedule: expected increasing steps"}},
      {"--sync diloco --outer-momentum 1", {"--outer-momentum: expected", "0.9999"}},
      {"--sync local --outer-lr 1",
       {"--outer-lr", "the sync local does not use it, but diloco does"}},
      {"--sync-every 5", {"--sync-every", "the sync exact does not use it"}},
      {"--sync local --balance measured", {"--balance: measured", "replicas"}},
      {"--sync local --micro-batch auto", {"--micro-batch: auto", "replicas"}},
      {"--sync local --batch 6", {"a multiple of 4 micro-batches", "found 3"}},
      {"--sync local --elastic 2:4", {"--elastic: with --sync local", "--restart N alone"}}};
  for (const auto& [flags, parts] : wrong) {
    const Finished finished = train("wrong", gpt() + "--steps 2 -n 4 " + flags);
    EXPECT_EQ(finished.code, 2) << flags << finished.out << finished.err;
    expect_parts(finished.err, parts);
  }
}

}  // namespace
}  // namespace trireme::train_sync_test
