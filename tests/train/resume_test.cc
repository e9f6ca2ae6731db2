// A training that is interrupted or killed, and goes on, ends with the same bits as one that was
// not.

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "data/formula_dataset.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "train/train_progress.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/error.h"
#include "trireme/train/run_recorder.h"
#include "trireme/train/trainer.h"

namespace trireme::resume_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using at::Tensor;
using detail::concat;
using detail::TrainProgress;
using testing::fork_ranks;
using testing::FormulaDataset;
using testing::message_of;
using testing::TemporaryFolder;

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 3;

std::shared_ptr<const Dataset> dataset(std::int64_t size) {
  return std::make_shared<FormulaDataset>(
      size,
      std::vector<std::int64_t>{kFeatures},
      kClasses,
      [](std::int64_t sample) { return sample % kClasses; },
      [](std::int64_t sample, std::int64_t place) {
        const double noise = std::sin(0.7 * static_cast<double>(sample * 13 + place * 5));
        return static_cast<float>(noise + (place == sample % kClasses ? 1.5 : 0));
      });
}

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Dropout drop{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(kFeatures, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    drop = register_module("drop", nn::Dropout(0.3));
    second = register_module("second", nn::Linear(8, kClasses));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = norm->forward(first->forward(x).to(at::kFloat)).to(x.scalar_type());
    return second->forward(drop->forward(at::relu(h)));
  }
};
TORCH_MODULE(Net);

// Takes a single sample, too.
struct PlainNetImpl : nn::Module {
  nn::Linear linear{nullptr};
  PlainNetImpl() {
    torch::manual_seed(3);
    linear = register_module("linear", nn::Linear(kFeatures, kClasses));
  }
  Tensor forward(const Tensor& x) { return linear->forward(x); }
};
TORCH_MODULE(PlainNet);

std::string bits_of(const nn::Module& model) {
  std::string bits;
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const Tensor& each : list) {
      const Tensor values = each.detach().clone().contiguous();
      bits.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    }
  }
  return bits;
}

// What a run has said, one text for each step and evaluation, to the last bit; a run that goes on
// goes on in it, as in a file.
class History final : public TrainObserver {
 public:
  void begins(const TrainBeginning& beginning) override {
    begun = beginning;
    seconds_since = 0;
    std::erase_if(lines, [&](const Line& line) {
      const bool again = line.step == beginning.step && line.evaluates && !beginning.evaluated;
      return line.step > beginning.step || again;
    });
  }
  void step(const StepReport& report) override {
    char text[200];
    std::snprintf(text,
                  sizeof(text),
                  "step %lld epoch %a loss %a lr %a norm %a%s",
                  static_cast<long long>(report.step),
                  report.epoch,
                  report.loss,
                  report.learning_rate,
                  report.gradient_norm,
                  report.skipped ? " skipped" : "");
    lines.push_back({report.step, false, text});
    // Steps of an earlier part may have taken another time each.
    seconds_since += report.seconds;
    EXPECT_NEAR(report.seconds_left,
                seconds_since / static_cast<double>(report.step - begun.step) *
                    static_cast<double>(report.steps - report.step),
                1e-6);
    if (report.step == dies_after) {
      throw Error("killed");
    }
  }
  void evaluated(std::int64_t step, const Evaluation& evaluation, bool best) override {
    char text[100];
    std::snprintf(text, sizeof(text), "eval %a%s", evaluation.metrics.at("loss"), best ? "!" : "");
    lines.push_back({step, true, text});
  }
  void values(const std::string&, std::int64_t, std::span<const float>) override {}
  void message(const std::string& text) override { messages += text + "\n"; }
  void samples(const std::vector<std::int64_t>&) override {}
  void weights(const std::string& which, const nn::Module& module) override {
    kept[which] = bits_of(module);
  }

  // What a step's line says behind `name`.
  double value(const std::string& name, std::int64_t step) const {
    double found = std::nan("");
    for (const Line& line : lines) {
      const std::size_t at = line.text.find(name);
      if (line.step == step && !line.evaluates && at != std::string::npos) {
        std::sscanf(line.text.c_str() + at + name.size(), "%la", &found);
      }
    }
    return found;
  }

  std::string text() const {
    std::string all;
    for (const Line& line : lines) {
      all += concat(line.step, ": ", line.text, "\n");
    }
    return all;
  }

  struct Line {
    std::int64_t step;
    bool evaluates;
    std::string text;
  };
  std::vector<Line> lines;
  std::map<std::string, std::string> kept;
  std::string messages;
  TrainBeginning begun;
  double seconds_since = 0;  // of the steps
  std::int64_t dies_after = -1;
};

TrainSettings base_settings() {
  TrainSettings settings;
  settings.model = "mine";
  settings.data = "mine";
  settings.steps = 14;
  settings.batch = 12;
  settings.micro_batch = "4";
  settings.schedule = ScheduleKind::kCosine;
  settings.lr = 1e-2;
  settings.eval_every = 3;
  settings.noise = 0.1;
  settings.memory_limit = "1GB";
  settings.save_every = 2;
  return settings;
}

// How a part of a run is computed, and how it ends.
struct Part {
  int ranks = 1;
  int zero = 0;
  std::int64_t stops_after = -1;  // in good order
  std::int64_t dies_after = -1;   // in no order at all
  Placement placement = Placement::kAutomatic;
};

using Adjust = std::function<void(TrainSettings& settings)>;
using MakeModel = std::function<Trainable()>;

Trainable net() {
  const Net model;
  return {model.ptr(),
          [model = model.ptr()](const TensorBatch& batch) { return model->forward(batch.dense); }};
}

std::shared_ptr<World> world_of(const std::string& job, int rank, int size) {
  return init(testing::options_for(job, rank, size));
}

// Runs a part in a world of its own; ranks that are not in it do nothing.
std::optional<TrainResult> run_part(const Part& part,
                                    TrainSettings settings,
                                    const MakeModel& make,
                                    const std::string& job,
                                    int rank,
                                    const TrainCheckpoints& checkpoints,
                                    History& history) {
  if (rank >= part.ranks) {
    return std::nullopt;
  }
  settings.ranks = part.ranks;
  settings.zero = part.zero;
  settings.placement = part.placement;
  const auto world = world_of(job, rank, part.ranks);
  history.dies_after = part.dies_after;
  // Asked before a step, not in the middle of the evaluation that comes before it.
  const auto stop = [&] {
    const std::int64_t last = history.lines.empty() ? 0 : history.lines.back().step;
    const bool evaluating = last > 0 && settings.eval_every > 0 &&
                            last % settings.eval_every == 0 && !history.lines.back().evaluates;
    return last + 1 == part.stops_after && !evaluating && rank == part.ranks - 1;
  };
  const Trainable model = make();
  try {
    const TrainResult result = train(
        resolve(settings), model, {dataset(100), dataset(30)}, world, &history, stop, checkpoints);
    EXPECT_LT(part.dies_after, 0);
    return result;
  } catch (const Error& error) {
    EXPECT_GE(part.dies_after, 0) << error.what();
    return std::nullopt;
  }
}

// Runs the settings in one go on one rank, and in parts, which may follow from what happens in one
// go, and expects the same of both. `happens` has to: otherwise the test would not be about
// anything.
using Parts = std::function<std::vector<Part>(const History& expected)>;

void expect_same(const std::string& name,
                 const Adjust& adjust,
                 const Parts& parts_of,
                 const std::function<bool(const History& expected)>& happens = {}) {
  SCOPED_TRACE(name);
  const TemporaryFolder folder;
  const std::string job = testing::unique_job();
  constexpr int kRanks = 3;
  fork_ranks(kRanks, [&](int rank) {
    at::set_num_threads(1);
    const auto everyone = world_of(job + "-all", rank, kRanks);
    TrainSettings settings = base_settings();
    adjust(settings);

    TrainSettings calm = settings;
    calm.save_every = 0;
    History expected;
    const auto wanted = run_part({}, calm, net, concat(job, "-calm-", rank), 0, {}, expected);
    const std::vector<Part> parts = parts_of(expected);

    History history;
    std::optional<TrainResult> result;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      result = run_part(parts[i],
                        settings,
                        net,
                        concat(job, "-", i),
                        rank,
                        {.folder = folder.path() + "/c"},
                        history);
      if (i > 0 && rank < parts[i].ranks) {
        EXPECT_GT(history.begun.step, 0) << "went on from a checkpoint";
      }
      everyone->barrier().wait();
    }
    if (rank == 0) {  // in every part
      ASSERT_TRUE(wanted && result);
      EXPECT_TRUE(!happens || happens(expected)) << expected.text();
      EXPECT_EQ(history.text(), expected.text());
      EXPECT_EQ(history.kept.at("model"), expected.kept.at("model"));
      EXPECT_TRUE(history.kept == expected.kept) << "all weights that were kept";
      EXPECT_EQ(result->status, wanted->status);
      EXPECT_EQ(result->steps, wanted->steps);
      EXPECT_EQ(result->loss, wanted->loss);
      EXPECT_EQ(result->best_step, wanted->best_step);
      EXPECT_EQ(result->best, wanted->best);
      EXPECT_EQ(result->goal_step, wanted->goal_step);
      EXPECT_EQ(result->micro_batch, wanted->micro_batch);
      EXPECT_EQ(result->evaluation.metrics, wanted->evaluation.metrics);
      EXPECT_TRUE(CheckpointFolder(folder.path() + "/c").contains(wanted->steps))
          << "the last one has the name of the last step";
    }
    everyone->barrier().wait();
  });
}

void expect_same(const std::string& name,
                 const Adjust& adjust,
                 const std::vector<Part>& parts,
                 const std::function<bool(const History& expected)>& happens = {}) {
  expect_same(
      name, adjust, [&](const History&) { return parts; }, happens);
}

TEST(Resume, AfterBeingInterruptedInMidEpoch) {
  // An epoch has 100 samples, a step 12; step 9 is where evaluation is due, too.
  for (const std::int64_t step : {1, 5, 9}) {
    expect_same(concat("stopped after ", step),
                [](TrainSettings&) {},
                {{.ranks = 1, .stops_after = step}, {.ranks = 1}});
  }
}

TEST(Resume, AfterBeingKilledWithOtherRanksAndStages) {
  const std::vector<std::vector<Part>> cases = {
      {{.ranks = 2, .zero = 0, .dies_after = 9}, {.ranks = 2, .zero = 0}},
      {{.ranks = 3, .zero = 1, .dies_after = 7}, {.ranks = 1, .zero = 0}},
      {{.ranks = 1, .zero = 2, .dies_after = 6}, {.ranks = 3, .zero = 3}},
      {{.ranks = 2, .zero = 3, .dies_after = 9, .placement = Placement::kCopied},
       {.ranks = 3, .zero = 2, .dies_after = 13},
       {.ranks = 2, .zero = 3, .placement = Placement::kMapped}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_same(
        concat("case ", i),
        [](TrainSettings& s) {
          s.clip_norm = 1;
          s.ema_decay = 0.8;
          s.goal = "loss:1.0";
        },
        cases[i]);
  }
}

TEST(Resume, AgainAndAgain) {
  std::vector<Part> parts;
  for (const std::int64_t step : {2, 3, 6, 9, 12}) {
    parts.push_back({.ranks = 1 + static_cast<int>(step % 2), .zero = 1, .stops_after = step});
  }
  parts.push_back({.ranks = 2, .zero = 3});
  expect_same(
      "five times", [](TrainSettings& s) { s.eval_every = 0; }, parts);
}

TEST(Resume, WithAPlateauAndEarlyStopping) {
  // Of 30 samples an accuracy can improve 30 times at the most, so that 40 evaluations bring stalls
  // wherever the rounding of this machine puts them. Each halves the rate, six in a row end the
  // run, and the break comes between the first and the last of them.
  const Adjust stalls = [](TrainSettings& s) {
    s.schedule = ScheduleKind::kPlateau;
    s.plateau_patience = 0;
    s.gamma = 0.5;
    s.lr = 0.3;
    s.best = "accuracy";
    s.eval_every = 1;
    s.early_stop = 6;
    s.warm_up = 3;
    s.steps = 40;
    s.save_every = 1;
  };
  const auto falls = [](const History& expected) {
    std::vector<std::int64_t> steps;
    for (std::int64_t step = 5; step <= expected.lines.back().step; ++step) {
      if (expected.value("lr ", step) < expected.value("lr ", step - 1)) {
        steps.push_back(step);
      }
    }
    return steps;
  };
  const auto in_between = [falls](const History& expected) {
    const std::vector<std::int64_t> steps = falls(expected);
    EXPECT_GE(steps.size(), 5U) << expected.text();
    return steps[steps.size() / 2];
  };
  expect_same("killed", stalls, [in_between](const History& expected) -> std::vector<Part> {
    return {{.ranks = 2, .zero = 2, .dies_after = in_between(expected)}, {.ranks = 3, .zero = 1}};
  });
  expect_same("stopped", stalls, [in_between](const History& expected) -> std::vector<Part> {
    return {{.ranks = 1, .stops_after = in_between(expected)}, {.ranks = 2, .zero = 3}};
  });
}

TEST(Resume, AfterTheEndChangesNothing) {
  const std::vector<Part> twice = {{.ranks = 2, .zero = 3}, {.ranks = 1}};
  expect_same(
      "finished", [](TrainSettings&) {}, twice);
  expect_same(
      "stopped early",
      [](TrainSettings& s) {
        s.lr = 1e-12;
        s.optimizer = "sgd";
        s.best = "accuracy";
        s.early_stop = 2;
      },
      twice,
      [](const History& expected) { return expected.lines.back().step < 14; });
}

// Interrupted after its last step: whoever resumes evaluates, and then has a checkpoint of that.
TEST(Resume, AnInterruptedLastEvaluationIsSavedWhenItWasMade) {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/c";
  fork_ranks(1, [&](int) {
    at::set_num_threads(1);
    const auto run = [&](const TrainSettings& settings, bool interrupted) {
      History history;
      const auto world = world_of(testing::unique_job(), 0, 1);
      const auto stop = [&] {
        return interrupted && !history.lines.empty() && history.lines.back().step == settings.steps;
      };
      const TrainResult result = train(resolve(settings),
                                       net(),
                                       {dataset(100), dataset(30)},
                                       world,
                                       &history,
                                       stop,
                                       {.folder = place});
      EXPECT_EQ(result.status == TrainResult::Status::kInterrupted, interrupted);
      return result;
    };
    const auto saved = [&](std::int64_t step) {
      const Manifest manifest = Manifest::read(CheckpointFolder(place).path_of(step));
      return std::pair(TrainProgress::parse(manifest.notes.at("train"), "a"), manifest.sequence);
    };
    TrainSettings settings = base_settings();
    settings.eval_every = 100;
    settings.eval_batch = 8;
    run(settings, true);
    EXPECT_EQ(saved(14).first.evaluated_step, 0);
    const TrainResult result = run(settings, false);
    EXPECT_EQ(result.best_step, 14);
    const auto [progress, sequence] = saved(14);
    EXPECT_EQ(progress.evaluated_step, 14);
    EXPECT_EQ(progress.best_step, 14);
    EXPECT_EQ(progress.best, result.best);
    run(settings, false);
    EXPECT_EQ(saved(14).second, sequence) << "nothing new: not saved again";
    // What it was is not forgotten by who trains on.
    settings.steps = 16;
    settings.allow_changes = true;
    run(settings, false);
    EXPECT_EQ(saved(16).first.evaluated_step, 16);
  });
}

// Overflows halve the scale and skip steps: the step of the run is not that of the engine.
TEST(Resume, WithALossScale) {
  expect_same(
      "float16",
      [](TrainSettings& s) {
        s.precision = TrainPrecision::kFloat16;
        s.loss_scale_initial = 16777216;
        s.loss_scale_window = 2;
        s.clip_norm = 1;
      },
      {{.ranks = 2, .zero = 2, .dies_after = 7},
       {.ranks = 1, .zero = 0, .stops_after = 10},
       {.ranks = 3, .zero = 3}},
      [](const History& expected) {
        const std::string text = expected.text();
        return text.find("skipped") < text.find("step 5 ") &&
               text.rfind("skipped") > text.find("step 10 ") &&
               text.find("step 14 ") != std::string::npos;
      });
}

TEST(Resume, InEveryPrecision) {
  for (const auto& [name, precision] : {std::pair("bfloat16", TrainPrecision::kBFloat16),
                                        {"autocast", TrainPrecision::kAutocast}}) {
    expect_same(name,
                [precision = precision](TrainSettings& s) {
                  s.precision = precision;
                  s.ema_decay = 0.9;
                },
                {{.ranks = 2, .zero = 3, .dies_after = 9}, {.ranks = 3, .zero = 1}});
  }
}

TEST(Resume, WithBatchesAndSamplesOfAllKinds) {
  const std::vector<Part> parts = {{.ranks = 2, .zero = 1, .dies_after = 8}, {.ranks = 3}};
  expect_same(
      "growing",
      [](TrainSettings& s) {
        s.batch_schedule = {"4:24", "9:36"};
      },
      parts);
  expect_same(
      "drawn",
      [](TrainSettings& s) {
        s.sampling = Sampling::kWeighted;
        s.class_weights = {1, 2, 3};
        s.loss_weights = {1, 0.5, 2};
        s.optimizer = "lamb";
      },
      parts);
  expect_same(
      "shares",
      [](TrainSettings& s) {
        s.partition = Partition::kHash;
        s.optimizer = "sgd";
      },
      parts);
}

// What was found, or made smaller, stays in force; it is not looked for again.
TEST(Resume, WithTheMicroBatchThatWasFound) {
  const TemporaryFolder folder;
  const std::string jobs[] = {testing::unique_job(), testing::unique_job()};
  fork_ranks(1, [&](int rank) {
    at::set_num_threads(1);
    TrainSettings settings = base_settings();
    settings.micro_batch = "auto";
    std::int64_t room = 6;
    const auto make = [&] {
      const PlainNet fresh;
      return Trainable{fresh.ptr(), [&, fresh = fresh.ptr()](const TensorBatch& batch) {
                         if (fresh->is_training() && batch.samples > room) {
                           throw MemoryError("no room");
                         }
                         return fresh->forward(batch.dense);
                       }};
    };
    History history;
    const TrainCheckpoints kept{.folder = folder.path() + "/c"};
    run_part({.stops_after = 5}, settings, make, jobs[0], rank, kept, history);
    EXPECT_NE(history.messages.find("micro-batches of 6 fit"), std::string::npos);
    room = 12;
    history.messages.clear();
    const auto result = run_part({}, settings, make, jobs[1], rank, kept, history);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->micro_batch, 6);
    EXPECT_EQ(history.messages.find(" fit"), std::string::npos) << history.messages;
  });
}

// --- what is refused

void with_checkpoint(const std::function<void(const std::string& folder, int rank)>& then) {
  const TemporaryFolder folder;
  const std::string job = testing::unique_job();
  fork_ranks(1, [&](int rank) {
    at::set_num_threads(1);
    History history;
    const std::string checkpoints = folder.path() + "/c";
    run_part({.stops_after = 5}, base_settings(), net, job, rank, {.folder = checkpoints}, history);
    then(checkpoints, rank);
  });
}

std::string refusal(const TrainSettings& settings, const TrainCheckpoints& checkpoints) {
  const auto world = world_of(testing::unique_job(), 0, 1);
  History history;
  const std::string message = message_of<Error>([&] {
    train(resolve(settings), net(), {dataset(100), dataset(30)}, world, &history, {}, checkpoints);
  });
  EXPECT_TRUE(history.lines.empty()) << "nothing was told before it was refused";
  return message;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(Resume, RefusesOtherSettingsUnlessTheyAreAllowed) {
  with_checkpoint([](const std::string& folder, int) {
    TrainSettings other = base_settings();
    other.lr = 0.5;
    other.eval_every = 7;
    other.keep_last = 1;
    const std::string message = refusal(other, {.folder = folder});
    expect_parts(message,
                 {"step 5",
                  "lr: 0.01 in the checkpoint, 0.5 now",
                  "eval_every: 3 in the checkpoint, 7 now",
                  "--allow-changes"});
    EXPECT_EQ(message.find("keep_last"), std::string::npos) << message;

    other.allow_changes = true;
    History history;
    const auto world = world_of(testing::unique_job(), 0, 1);
    train(resolve(other),
          net(),
          {dataset(100), dataset(30)},
          world,
          &history,
          {},
          {.folder = folder});
    expect_parts(history.messages,
                 {"settings that differ from before", "lr: 0.01 in the checkpoint, 0.5 now"});
    // The new rate is in force: half a cosine of 14 steps, of which 5 are done.
    EXPECT_NEAR(history.value("lr ", 6), 0.5 * (1 + std::cos(M_PI * 5 / 14)) / 2, 1e-12);
  });
}

TEST(Resume, RefusesOtherDataUnlessItIsAllowed) {
  with_checkpoint([](const std::string& folder, int) {
    const auto world = world_of(testing::unique_job(), 0, 1);
    const auto with = [&](const TrainSettings& settings) {
      train(resolve(settings),
            net(),
            {dataset(101), dataset(30)},
            world,
            nullptr,
            {},
            {.folder = folder});
    };
    TrainSettings settings = base_settings();
    expect_parts(message_of<ConfigError>([&] { with(settings); }),
                 {"data", "100 samples", "101", "--allow-changes"});
    settings.allow_changes = true;
    with(settings);
  });
}

TEST(Resume, ListsTheStepsThatAreThere) {
  with_checkpoint([](const std::string& folder, int) {
    expect_parts(refusal(base_settings(), {.folder = folder, .step = 3}), {"step 3", "2, 4, 5"});
    expect_parts(refusal(base_settings(), {.folder = folder, .resume = false}),
                 {"holds checkpoints of another run", "2, 4, 5"});
    TrainSettings less = base_settings();
    less.steps = 4;
    less.allow_changes = true;
    expect_parts(refusal(less, {.folder = folder}), {"steps", "5", "found 4"});
  });
}

TEST(Resume, NamesWhatIsDamagedAndWhatIsLeft) {
  with_checkpoint([](const std::string& folder, int) {
    const std::string data = CheckpointFolder(folder).path_of(5) + "/rank-00000.safetensors";
    const auto size = static_cast<std::streamoff>(fs::file_size(data));
    {
      std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(size - 9);
      file.put('?');
    }
    expect_parts(refusal(base_settings(), {.folder = folder}), {data, "--resume STEP", "2, 4"});
    // An older one is whole.
    const auto world = world_of(testing::unique_job(), 0, 1);
    History history;
    train(resolve(base_settings()),
          net(),
          {dataset(100), dataset(30)},
          world,
          &history,
          {},
          {.folder = folder, .step = 4});
    EXPECT_EQ(history.begun.step, 4);
    EXPECT_EQ(history.lines.front().step, 5);
  });
}

// A file that may not grow is what a rank sees of a disk that is full.
TEST(Resume, ASaveThatFailsOnOneRankStopsAll) {
  class Limiter final : public TrainObserver {
   public:
    explicit Limiter(int rank) : rank_(rank) {}
    void step(const StepReport& report) override {
      last = report.step;
      if (rank_ == 1 && report.step == 18) {
        const rlimit limit{1000, 1000};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
    }
    void evaluated(std::int64_t, const Evaluation&, bool) override {}
    void values(const std::string&, std::int64_t, std::span<const float>) override {}
    void message(const std::string&) override {}
    void samples(const std::vector<std::int64_t>&) override {}
    void weights(const std::string&, const nn::Module&) override {}
    std::int64_t last = 0;

   private:
    int rank_;
  };
  const TemporaryFolder folder;
  const std::string job = testing::unique_job();
  const std::string checkpoints = folder.path() + "/c";
  fork_ranks(3, [&](int rank) {
    at::set_num_threads(1);
    signal(SIGXFSZ, SIG_IGN);
    const auto world = world_of(job, rank, 3);
    TrainSettings settings = base_settings();
    settings.steps = 100000;
    settings.save_every = 5;
    Limiter observer(rank);
    const std::string message = message_of<CheckpointError>([&] {
      train(resolve(settings),
            net(),
            {dataset(100), nullptr},
            world,
            &observer,
            {},
            {.folder = checkpoints});
    });
    expect_parts(message, {checkpoints, "File too large"});
    expect_parts(message,
                 rank == 1 ? std::vector<std::string>{} : std::vector<std::string>{"rank 1"});
    EXPECT_GE(observer.last, 20);
    EXPECT_LE(observer.last, 25) << "at the latest when the next one is to be saved";
    world->barrier().wait();
    // What was complete before still is.
    if (rank == 0) {
      EXPECT_EQ(CheckpointFolder(checkpoints).newest(), 15);
    }
  });
}

// Watches the end of a run: what is there when weights are written, and what fails then.
class EndWatcher final : public TrainObserver {
 public:
  void step(const StepReport&) override {}
  void evaluated(std::int64_t, const Evaluation&, bool) override {}
  void values(const std::string&, std::int64_t, std::span<const float>) override {}
  void message(const std::string&) override {}
  void samples(const std::vector<std::int64_t>&) override {}
  void saves(std::int64_t step) override { saving = step; }
  void settle() override {
    // A disk that takes its time: training is ahead of it wherever it does not wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (saving == save_that_fails) {
      throw Error("a made failure of the disk");
    }
  }
  void weights(const std::string& which, const nn::Module&) override {
    if (which == "model") {
      saved_before_weights = CheckpointFolder(folder).newest().value_or(-1);
      if (weights_fail) {
        throw Error("a made failure of the weights");
      }
    }
  }
  std::string folder;
  bool weights_fail = false;
  std::int64_t save_that_fails = -1;
  std::atomic<std::int64_t> saving{-1};
  std::int64_t saved_before_weights = -2;  // nobody wrote weights
};

TEST(Resume, WeightsThatCannotBeWrittenDoNotCostTheLastCheckpoint) {
  const TemporaryFolder folder;
  fork_ranks(1, [&](int) {
    at::set_num_threads(1);
    EndWatcher watcher;
    watcher.folder = folder.path() + "/c";
    watcher.weights_fail = true;
    const auto world = world_of(testing::unique_job(), 0, 1);
    const std::string message = message_of<Error>([&] {
      train(resolve(base_settings()),
            net(),
            {dataset(100), nullptr},
            world,
            &watcher,
            {},
            {.folder = watcher.folder});
    });
    EXPECT_EQ(message, "a made failure of the weights");
    EXPECT_EQ(watcher.saved_before_weights, 14);
    EXPECT_EQ(CheckpointFolder(watcher.folder).newest(), 14);
  });
}

TEST(Resume, ALastCheckpointThatCannotBeWrittenDoesNotCostTheWeights) {
  const TemporaryFolder folder;
  const std::string job = testing::unique_job();
  fork_ranks(2, [&](int rank) {
    at::set_num_threads(1);
    EndWatcher watcher;
    watcher.folder = folder.path() + "/c";
    watcher.save_that_fails = 14;
    TrainSettings settings = base_settings();
    settings.save_every = 100;  // the last one alone
    const auto world = world_of(job, rank, 2);
    const std::string message = message_of<CheckpointError>([&] {
      train(resolve(settings),
            net(),
            {dataset(100), nullptr},
            world,
            rank == 0 ? &watcher : nullptr,
            {},
            {.folder = watcher.folder});
    });
    expect_parts(message, {"a made failure of the disk"});
    EXPECT_EQ(watcher.saved_before_weights, rank == 0 ? -1 : -2);
  });
}

}  // namespace
}  // namespace trireme::resume_test
