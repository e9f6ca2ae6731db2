#include "sync_rank.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "step_settings.h"
#include "sync_training.h"
#include "traffic.h"
#include "train/rank_balance.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::bench {
namespace {

// bench/peers/step_common.py has the same numbers.
const StepSetting kSmallSetting = {
    "small", {.vocabulary = 64, .sequence = 16, .width = 64, .layers = 2, .heads = 2}, 1};

// One rank's part of a step, paced.
class PacedSteps {
 public:
  PacedSteps(const SyncTask& task, const std::shared_ptr<World>& world)
      : task_(task),
        world_(world),
        setting_(task.small ? kSmallSetting : kStepSettings[0]),
        model_(setting_.model),
        generator_(at::detail::createCPUGenerator(static_cast<std::uint64_t>(world->rank()))) {
    const SyncMode mode = SyncMode::parse(task.mode);
    const std::int64_t count = task.micro_batches > 0 ? task.micro_batches : world->size();
    training_ = make_training(mode, model_, count, world);
    dealt_.assign(static_cast<std::size_t>(world->size()), count / world->size());
    if (mode.name == "balance") {
      TrainSettings settings;
      settings.balance = Balance::kMeasured;
      balance_.emplace(settings, world->size());
    }
  }

  void step(std::int64_t number) {
    double seconds = 0;  // of computing
    const std::int64_t count = training_->micro_batches();
    for (std::int64_t k = 0; k < count; ++k) {
      const auto text = torch::randint(0,
                                       setting_.model.vocabulary,
                                       {setting_.batch, setting_.model.sequence + 1},
                                       generator_,
                                       torch::kLong);
      const auto begin = Clock::now();
      const at::Tensor loss = model_->loss(text);
      const std::chrono::duration<double, std::milli> least(
          task_.pace.milliseconds(world_->rank(), number));
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(least));
      seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      training_->compute(loss);
    }
    if (balance_) {
      share(seconds);
    }
  }

  SyncTraining& training() const { return *training_; }
  const std::vector<std::int64_t>& dealt() const { return dealt_; }
  std::int64_t parameters() const {
    std::int64_t sum = 0;
    for (const at::Tensor& parameter : model_->parameters()) {
      sum += parameter.numel();
    }
    return sum;
  }

 private:
  // As trireme train does it after each step.
  void share(double seconds) {
    std::vector<double> all(dealt_.size(), 0);
    all[static_cast<std::size_t>(world_->rank())] = seconds;
    world_->all_reduce(all).wait();
    balance_->observe(all, dealt_);
    if (balance_->wants_new_deal()) {
      std::int64_t sum = 0;
      for (const std::int64_t count : dealt_) {
        sum += count;
      }
      dealt_ = balance_->deal(sum);
      training_->deal(dealt_);
    }
  }

  const SyncTask& task_;
  std::shared_ptr<World> world_;
  const StepSetting& setting_;
  models::Gpt model_;
  at::Generator generator_;
  std::unique_ptr<SyncTraining> training_;
  std::vector<std::int64_t> dealt_;
  std::optional<detail::RankBalance> balance_;
};

}  // namespace

void SyncTask::add_to(CLI::App& app) {
  app.add_option("--mode", mode)->group("");
  app.add_flag("--small", small)->group("");
  app.add_option("--micro-batches", micro_batches)->group("");
  app.add_option("--warm-up-steps", warm_up)->group("");
  app.add_option("--timed-steps", timed)->group("");
  app.add_option("--pace-ms", pace.ms)->group("");
  app.add_option("--slow-rank", pace.slow_rank)->group("");
  app.add_option("--factor", pace.factor)->group("");
  app.add_option("--probability", pace.probability)->group("");
  app.add_option("--stall", pace.stall)->group("");
  app.add_option("--stall-seed", pace.seed)->group("");
}

std::vector<std::string> SyncTask::command(const std::string& output) const {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "--worker",
                                    "--output",
                                    output,
                                    "--mode",
                                    mode,
                                    "--micro-batches",
                                    std::to_string(micro_batches),
                                    "--warm-up-steps",
                                    std::to_string(warm_up),
                                    "--timed-steps",
                                    std::to_string(timed),
                                    "--pace-ms",
                                    std::to_string(pace.ms),
                                    "--factor",
                                    std::to_string(pace.factor),
                                    "--probability",
                                    std::to_string(pace.probability),
                                    "--stall",
                                    std::to_string(pace.stall),
                                    "--stall-seed",
                                    std::to_string(pace.seed)};
  if (small) {
    words.emplace_back("--small");
  }
  if (pace.slow_rank >= 0) {
    words.insert(words.end(), {"--slow-rank", std::to_string(pace.slow_rank)});
  }
  return words;
}

int run_sync_rank(const SyncTask& task, const std::string& output) {
  const auto world = init();
  at::set_num_threads(1);
  torch::manual_seed(0);
  PacedSteps steps(task, world);
  Traffic before;
  std::int64_t sent_before = 0;
  auto begin = Clock::now();
  for (std::int64_t number = -task.warm_up; number < task.timed; ++number) {
    if (number == 0) {
      // Ranks that need not wait for each other begin together, and none before all have counted.
      world->barrier().wait();
      sent_before = steps.training().sent_bytes();
      before = traffic_of(*world);
      world->barrier().wait();
      begin = Clock::now();
    }
    steps.step(number);
  }
  world->barrier().wait();  // the time is until all are done
  const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
  const Traffic after = traffic_of(*world);
  std::vector<std::int64_t> sums = {steps.training().sent_bytes() - sent_before,
                                    after.interfaces - before.interfaces};
  world->all_reduce(sums).wait();
  steps.training().finish();  // after all have counted: it sends weights once more
  if (world->rank() == 0) {
    std::ofstream(output) << nlohmann::json{
        {"ms", taken.count() / task.timed},
        {"parameters", steps.parameters()},
        {"ledger_bytes", static_cast<double>(sums[0]) / task.timed / world->size()},
        {"interface_bytes", static_cast<double>(sums[1]) / task.timed / world->machines()},
        {"micro_batches", steps.dealt()},
        {"system", world->description()}};
  }
  return 0;
}

nlohmann::json sync_rank_result(const std::string& output) {
  std::ifstream file(output);
  TRIREME_CHECK(file.good(), "expected a result in \"", output, "\", found none");
  return nlohmann::json::parse(file);
}

}  // namespace trireme::bench
