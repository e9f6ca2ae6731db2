#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "checkpoint_ranks.h"
#include "checkpoint_state.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/core/deadline.h"
#include "trireme/models/gpt.h"
#include "trireme/parallel/engine.h"

// What is trained is small, so that several steps fit into a save; what is saved is not its state
// but one of the size that was asked for.

namespace trireme::bench {
namespace {

const models::GptOptions kModel = {
    .vocabulary = 512, .sequence = 64, .width = 256, .layers = 4, .heads = 8};
constexpr std::int64_t kBatch = 2;
constexpr int kWarmUpSteps = 5;
constexpr int kTimedSteps = 24;

// Rank 0's answer on every rank.
bool agreed(World& world, bool value) {
  std::vector<std::int32_t> answer = {value ? 1 : 0};
  world.broadcast(answer, 0).wait();
  return answer[0] == 1;
}

}  // namespace

int run_steps_during_save(const CheckpointRankOptions& options) {
  const auto world = init();
  at::set_num_threads(1);
  torch::manual_seed(0);
  models::Gpt model(kModel);
  EngineOptions engine_options;
  engine_options.zero = 2;
  Engine engine(model, AdamW({.lr = 3e-4}), engine_options, world);
  const auto text = torch::randint(0, kModel.vocabulary, {kBatch, kModel.sequence + 1});
  const auto step_ms = [&] {
    const auto start = Clock::now();
    engine.backward(model->loss(text));
    engine.step();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  for (int i = 0; i < kWarmUpSteps; ++i) {
    step_ms();
  }

  const RankState state(gpt_state(options.bytes), world->size(), world->rank());
  CheckpointOptions save_options;
  save_options.retention.keep_last = 1;
  save_options.say = [](const std::string&) {};  // of saves that follow one another at once
  CheckpointWriter writer(options.folder, world, save_options);
  std::int64_t saved = 1;
  writer.save(saved, state.view(), {});
  writer.finish();

  std::vector<double> alone;
  for (int i = 0; i < kTimedSteps; ++i) {
    alone.push_back(step_ms());
  }
  // Saves follow one another: every step begins while one is under way.
  std::vector<double> beside;
  for (int i = 0; i < kTimedSteps; ++i) {
    if (agreed(*world, writer.folder().contains(saved))) {
      writer.save(++saved, state.view(), {});
    }
    beside.push_back(step_ms());
  }
  writer.finish();
  RankSamples samples(*world);
  samples.add("step_during_save", "", beside);
  samples.add("step_during_save", "nothing saved", alone);
  samples.write(options.output);
  return 0;
}

const char* libtorch_version() {
  return TORCH_VERSION;
}

}  // namespace trireme::bench
