#include <filesystem>

#include <gtest/gtest.h>

#include "support/processes.h"
#include "tools/run_folder.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::read_file;
using testing::write_file;
using testing::write_log;

class PlotCommand : public ::testing::Test {
 protected:
  std::string run(const std::string& name) const { return folder_.path() + "/" + name; }

  Finished plot(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {testing::trireme_binary(), "plot"});
    return testing::run_program(std::move(arguments));
  }

  testing::TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(PlotCommand, DrawsTheLossOfARunIntoItsFolder) {
  write_log(run("first"), 100, 1000);
  const Finished done = plot({run("first")});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, run("first") + "/loss.svg\n");
  const std::string svg = read_file(run("first") + "/loss.svg");
  EXPECT_TRUE(svg.starts_with("<svg")) << svg;
  EXPECT_TRUE(has(svg, "loss of first"));
  EXPECT_TRUE(has(svg, "class=\"faint s0\""));  // raw, behind
  EXPECT_TRUE(has(svg, "class=\"line s0\""));   // smoothed
  EXPECT_TRUE(has(svg, "class=\"line s1\""));   // the evaluations
  EXPECT_TRUE(has(svg, ">evaluation</text>"));
}

// As trireme train writes it after an overflow of float16.
TEST_F(PlotCommand, DrawsRunsWithSkippedSteps) {
  write_file(run("first") + "/metrics.jsonl",
             "{\"step\":1,\"loss\":2,\"skipped\":true}\n{\"step\":2,\"loss\":1}\n"
             "{\"step\":3,\"loss\":null,\"skipped\":true}\n");
  const Finished done = plot({run("first")});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(plot({run("first"), "--metric", "skipped"}).code, 0);
}

TEST_F(PlotCommand, DrawsSeveralRunsTogether) {
  write_log(run("first"), 100, 1000);
  write_log(run("second"), 50, 1000);
  const std::string path = folder_.path() + "/both.svg";
  const Finished done = plot({run("first"), run("second"), "--metric", "lr", "-o", path});
  ASSERT_EQ(done.code, 0) << done.err;
  const std::string svg = read_file(path);
  EXPECT_TRUE(has(svg, ">first</text>"));
  EXPECT_TRUE(has(svg, ">second</text>"));
  EXPECT_FALSE(has(svg, "class=\"faint s"));  // a learning rate is not noisy
  const Finished nowhere = plot({run("first"), run("second")});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_TRUE(has(nowhere.err, "expected -o FILE")) << nowhere.err;
}

TEST_F(PlotCommand, WritesToStandardOutputWhatIsAskedFor) {
  write_log(run("first"), 100, 1000);
  const Finished done = plot({run("first"), "-o", "-"});
  ASSERT_EQ(done.code, 0) << done.err;
  ASSERT_EQ(plot({run("first")}).code, 0);
  EXPECT_EQ(done.out, read_file(run("first") + "/loss.svg"));
  EXPECT_FALSE(std::filesystem::exists("-"));
}

TEST_F(PlotCommand, DrawsMetricsOfEvaluations) {
  write_log(run("first"), 100, 1000);
  for (const char* name : {"accuracy", "eval.loss"}) {
    ASSERT_EQ(plot({run("first"), "--metric", name}).code, 0);
    const std::string svg = read_file(run("first") + "/" + name + ".svg");
    EXPECT_TRUE(has(svg, ">evaluation</text>")) << svg;
    EXPECT_FALSE(has(svg, ">training</text>"));
  }
}

// As all that people read; metrics.jsonl keeps fractions.
TEST_F(PlotCommand, DrawsSharesInPercent) {
  write_file(run("first") + "/metrics.jsonl",
             "{\"step\":1,\"loss\":2}\n{\"step\":1,\"eval\":{\"f1\":0.2,\"rmse\":0.2}}\n"
             "{\"step\":2,\"loss\":1}\n{\"step\":2,\"eval\":{\"f1\":0.8,\"rmse\":0.8}}\n");
  ASSERT_EQ(plot({run("first"), "--metric", "eval.f1"}).code, 0);
  const std::string svg = read_file(run("first") + "/eval.f1.svg");
  EXPECT_TRUE(has(svg, ">%</text>")) << svg;
  EXPECT_TRUE(has(svg, ">60</text>")) << svg;
  EXPECT_FALSE(has(svg, ">0.6</text>")) << svg;
  ASSERT_EQ(plot({run("first"), "--metric", "eval.rmse"}).code, 0);
  const std::string errors = read_file(run("first") + "/eval.rmse.svg");
  EXPECT_FALSE(has(errors, ">%</text>")) << errors;
  EXPECT_TRUE(has(errors, ">0.6</text>")) << errors;
}

TEST_F(PlotCommand, DrawsTheFoldsOfACrossValidatedRun) {
  write_log(run("crossed/fold-1"), 30, 1000);
  write_log(run("crossed/fold-2"), 30, 1000);
  ASSERT_EQ(plot({run("crossed")}).code, 0);
  const std::string svg = read_file(run("crossed") + "/loss.svg");
  EXPECT_TRUE(has(svg, ">fold-1</text>"));
  EXPECT_TRUE(has(svg, ">fold-2</text>"));
}

// As SIGKILL leaves a cross-validation in the first step of a fold.
TEST_F(PlotCommand, LeavesOutFoldsThatHaveRecordedNothing) {
  write_log(run("crossed/fold-1"), 30, 1000);
  write_file(run("crossed/fold-2") + "/metrics.jsonl", "");
  const Finished done = plot({run("crossed")});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has(done.err, "fold-2 has recorded no step yet")) << done.err;
  write_file(run("begun") + "/metrics.jsonl", "{\"step\":1,\"lo");
  const Finished nothing = plot({run("begun")});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(has(nothing.err, "the run has recorded none yet")) << nothing.err;
}

TEST_F(PlotCommand, IgnoresTheEndOfALineThatWasNeverFinished) {
  write_file(run("killed") + "/metrics.jsonl",
             "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"lo");
  const Finished done = plot({run("killed")});
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(PlotCommand, ReportsABadLineInTheMiddle) {
  const std::string file = run("broken") + "/metrics.jsonl";
  write_file(file, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo\n{\"step\":3,\"loss\":1}\n");
  Finished done = plot({run("broken")});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(has(done.err, file + ":2: expected a JSON object with a \"step\"")) << done.err;
  // Also at the end, where it is a whole line.
  write_file(file, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo\n");
  EXPECT_EQ(plot({run("broken")}).code, 2);
  write_file(file, "{\"step\":1,\"loss\":\"low\"}\n");
  done = plot({run("broken")});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(has(done.err, ":1: expected a number or null for \"loss\", found \"low\""))
      << done.err;
  // One that could not be printed without a stack as deep as it is itself.
  write_file(
      file,
      "{\"step\":1,\"loss\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}\n");
  done = plot({run("broken")});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(has(done.err, file + ":1: expected a JSON object")) << done.err;
}

TEST_F(PlotCommand, AResumedRunReplacesWhatItHadDoneAfterItsCheckpoint) {
  const std::string again = "{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}\n";
  write_file(run("once") + "/metrics.jsonl", "{\"step\":1,\"loss\":3}\n" + again);
  write_file(
      run("resumed/once") + "/metrics.jsonl",
      "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":99}\n{\"step\":3,\"loss\":98}\n" + again);
  ASSERT_EQ(plot({run("once")}).code, 0);
  ASSERT_EQ(plot({run("resumed/once")}).code, 0);
  EXPECT_EQ(read_file(run("once") + "/loss.svg"), read_file(run("resumed/once") + "/loss.svg"));
}

TEST_F(PlotCommand, LossesThatWereNotFiniteAreGaps) {
  write_file(run("bad") + "/metrics.jsonl",
             "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":1}\n");
  ASSERT_EQ(plot({run("bad")}).code, 0);
  EXPECT_FALSE(has(read_file(run("bad") + "/loss.svg"), "<path class=\"line"));
}

TEST_F(PlotCommand, SaysWhatThereIsInsteadOfAMetricThatIsNotThere) {
  write_log(run("first"), 20, 1000);
  const Finished done = plot({run("first"), "--metric", "lss"});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(has(done.err,
                  "expected the metric \"lss\", found loss, lr, samples_per_second, eval.accuracy, "
                  "eval.loss"))
      << done.err;
  EXPECT_EQ(plot({run("nowhere")}).code, 2);
  const Finished unwritable = plot({run("first"), "-o", run("no/such/folder.svg")});
  EXPECT_EQ(unwritable.code, 2);
  EXPECT_TRUE(has(unwritable.err, "No such file or directory")) << unwritable.err;
  // Another name is that of another file.
  for (const std::string name : {"victim.txt", "x.html", "x.csv", "x.png", "svg", "x.svg.bak"}) {
    write_file(run(name), "mine");
    const Finished other = plot({run("first"), "-o", run(name)});
    EXPECT_EQ(other.code, 2);
    EXPECT_TRUE(has(other.err, "end it with .svg")) << other.err;
    EXPECT_EQ(read_file(run(name)), "mine");
  }
  const Finished full = plot({run("first"), "-o", "/dev/full"});
  EXPECT_TRUE(has(full.err, "No space left on device")) << full.err;
}

}  // namespace
}  // namespace trireme
