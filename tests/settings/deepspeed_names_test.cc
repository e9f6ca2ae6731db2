#include <gtest/gtest.h>

#include "settings/settings_cases.h"

namespace trireme::deepspeed_names_test {
namespace {

using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::refusal_of_json;

TEST(DeepspeedNames, SetBatchesClippingAndOutput) {
  const TrainSettings s = from(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8, "gradient_clipping": 0.5, "steps_per_print": 7, "seed": 9,
    "tensorboard": {"enabled": false, "output_path": "x", "job_name": "y"}, "wall_clock_breakdown": true})");
  EXPECT_EQ(s.batch, 64);
  EXPECT_EQ(s.micro_batch, "4");
  EXPECT_EQ(s.accumulate, 8);
  EXPECT_EQ(s.clip_norm, 0.5);
  EXPECT_EQ(s.log_every, 7);
  EXPECT_EQ(s.seed, 9U);
  EXPECT_FALSE(s.tensorboard);
  EXPECT_TRUE(from(R"({"tensorboard": {"enabled": true}})").tensorboard);
  EXPECT_FALSE(from(R"({"tensorboard": false})").tensorboard);
}

TEST(DeepspeedNames, SetTheOptimizer) {
  const TrainSettings s = from(R"({"optimizer": {"type": "AdamW", "params":
    {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}}})");
  EXPECT_EQ(s.optimizer, "adamw");
  EXPECT_EQ(s.lr, 3e-4);
  EXPECT_EQ(s.beta1, 0.8);
  EXPECT_EQ(s.beta2, 0.95);
  EXPECT_EQ(s.eps, 1e-7);
  EXPECT_EQ(s.weight_decay, 0.1);
  const TrainSettings sgd = from(
      R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.5, "nesterov": true}}})");
  EXPECT_EQ(sgd.optimizer, "sgd");
  EXPECT_EQ(sgd.momentum, 0.5);
  EXPECT_TRUE(sgd.nesterov);
  const std::vector<std::pair<std::string, std::string>> rules = {
      {"Adam", "adamw"}, {"Lamb", "lamb"}, {"Lion", "lion"}, {"Adagrad", "adagrad"}};
  for (const auto& [theirs, ours] : rules) {
    EXPECT_EQ(from(R"({"optimizer": {"type": ")" + theirs + R"("}})").optimizer, ours);
  }
  EXPECT_EQ(from(R"({"optimizer": "lion"})").optimizer, "lion");
}

TEST(DeepspeedNames, KnowThatTheirAdamDecouplesTheDecayUnlessToldNotTo) {
  EXPECT_EQ(from(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optimizer,
            "adam");
  EXPECT_EQ(from(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": true}}})").optimizer,
            "adamw");
  expect_parts(
      refusal_of_json(R"({"optimizer": {"type": "SGD", "params": {"adam_w_mode": true}}})"),
      {"adam_w_mode"});
}

TEST(DeepspeedNames, TakeWhatOnlyTunesTheOptimizerEitherWay) {
  for (const char* value : {"true", "false"}) {
    const std::string json = R"({"optimizer": {"type": "Adam", "params": {"torch_adam": )" +
                             std::string(value) + R"(, "fused": )" + value + "}}}";
    EXPECT_EQ(refusal_of_json(json), "");
  }
  EXPECT_EQ(
      refusal_of_json(R"({"optimizer": {"type": "Lamb", "params": {"bias_correction": true}}})"),
      "");
  expect_parts(
      refusal_of_json(R"({"optimizer": {"type": "Lamb", "params": {"bias_correction": false}}})"),
      {"bias_correction", "expected true"});
}

TEST(DeepspeedNames, SetTheScheduleOfEachType) {
  TrainSettings s = from(R"({"scheduler": {"type": "WarmupLR", "params":
    {"warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 50, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kConstant);
  EXPECT_EQ(s.lr, 0.01);
  EXPECT_EQ(s.warm_up, 50);
  s = from(R"({"scheduler": {"type": "WarmupDecayLR", "params":
    {"total_num_steps": 900, "warmup_num_steps": 30, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kLinear);
  EXPECT_EQ(s.schedule_steps, 900);
  EXPECT_EQ(s.warm_up, 30);
  EXPECT_EQ(s.final_factor, 0);
  s = from(R"({"scheduler": {"type": "WarmupCosineLR", "params":
    {"total_num_steps": 800, "warmup_num_steps": 20, "cos_min_ratio": 0.25, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kCosine);
  EXPECT_EQ(s.schedule_steps, 800);
  EXPECT_EQ(s.warm_up, 20);
  EXPECT_EQ(s.final_factor, 0.25);
}

TEST(DeepspeedNames, WarmUpAsLongAsDeepspeedWhereNothingIsSaid) {
  EXPECT_EQ(from(R"({"scheduler": {"type": "WarmupLR"}})").warm_up, 1000);
  const std::string automatic =
      R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})";
  EXPECT_EQ(from(automatic).warm_up, TrainSettings{}.warm_up);
}

// Which ends at 0.001 there, whatever the optimizer's learning rate is.
TEST(DeepspeedNames, SayWhereAWarmUpEndsElsewhere) {
  const auto said = [](const std::string& params) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(from(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.5}}, "scheduler": {"type":
      "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 9)" +
                   params + "}}}")
                  .warm_up,
              9);
    return ::testing::internal::GetCapturedStderr();
  };
  expect_parts(said(""), {"warmup_max_lr", "0.001", "optimizer.params.lr"});
  EXPECT_EQ(said(R"(, "warmup_max_lr": "auto")"), "");
}

TEST(DeepspeedNames, SetTheStageAndItsBuckets) {
  const TrainSettings s = from(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e5,
    "overlap_comm": true, "contiguous_gradients": true, "allgather_bucket_size": 5e8,
    "offload_optimizer": {"device": "none"}, "offload_param": null}})");
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.bucket_bytes, 4 * 500000);
  EXPECT_EQ(s.offload, "none");
}

TEST(DeepspeedNames, SayWhereStatesAre) {
  const auto offload = [](const std::string& json) {
    return from(R"({"zero_optimization": {"stage": 2, "offload_optimizer": )" + json + "}}")
        .offload;
  };
  EXPECT_EQ(offload(R"({"device": "cpu", "pin_memory": true, "ratio": 1})"), "optimizer");
  EXPECT_EQ(offload(R"({"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 4})"),
            "disk:/local_nvme");
  EXPECT_EQ(offload("null"), "none");
}

TEST(DeepspeedNames, SetThePrecision) {
  EXPECT_EQ(from(R"({"bf16": {"enabled": true}})").precision, TrainPrecision::kBFloat16);
  EXPECT_EQ(from(R"({"bf16": {"enabled": false}, "fp16": {"enabled": false}})").precision,
            TrainPrecision::kFloat32);
  const TrainSettings s =
      from(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 10,
    "loss_scale_window": 77, "hysteresis": 2, "min_loss_scale": 1}, "bf16": {"enabled": false}})");
  EXPECT_EQ(s.precision, TrainPrecision::kFloat16);
  EXPECT_EQ(s.loss_scale_initial, 1024);
  EXPECT_EQ(s.loss_scale_window, 77);
}

// DeepSpeed does not look at what else the section has.
TEST(DeepspeedNames, TakeNothingFromFp16ThatIsOff) {
  for (const char* off : {"", R"("enabled": false, )"}) {
    const TrainSettings s = from(R"({"fp16": {)" + std::string(off) +
                                 R"("loss_scale": 128, "initial_scale_power": 10,
      "loss_scale_window": 77, "hysteresis": 2, "min_loss_scale": 1}})");
    EXPECT_EQ(to_json(s), to_json(TrainSettings{}));
  }
  expect_parts(refusal_of_json(R"({"fp16": {"enabled": "auto", "loss_scale": 128}})"), {"dynamic"});
  expect_parts(refusal_of_json(R"({"fp16": {"enabled": false, "los_scale": 128}})"),
               {"los_scale", "did you mean"});
}

TEST(DeepspeedNames, LeaveAutomaticValuesAlone) {
  const TrainSettings s =
      from(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
      "warmup_num_steps": "auto", "total_num_steps": "auto"}}})");
  TrainSettings expected;
  expected.zero = 1;
  expected.schedule = ScheduleKind::kLinear;
  EXPECT_EQ(to_json(s), to_json(expected));
}

TEST(DeepspeedNames, RefuseWhatCannotBeHonoured) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})", "cpu or nvme"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})", "nvme_path"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}})", "ratio"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "rato": 1}}})", "rato"},
      {R"({"zero_optimization": {"offload_optimizer": 3}})", "offload_optimizer"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})", "offload"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": 3}}})", "offload"},
      {R"({"scheduler": {"type": "LRRangeTest"}})", "LRRangeTest"},
      {R"({"scheduler": {"type": 3}})", "scheduler.type"},
      {R"({"scheduler": {"params": {}}})", "scheduler.type"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}})", "linear"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1}}})",
       "begins at 1/(n+1)"},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_ratio": 0.1}}})",
       "begins at 1/(n+1)"},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 2}}})",
       "cos_min_ratio"},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}})", "cycle_max_lr"},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 2, "cycle_max_lr": 1}}})",
       "cycle_min_lr"},
      {R"({"optimizer": {"type": "OneBitAdam"}})", "OneBitAdam"},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})", "two numbers"},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 7]}}})", "betas"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "both"},
      {R"({"fp16": {"enabled": true, "loss_scale": 128}})", "dynamic"},
      {R"({"fp16": {"enabled": true, "initial_scale_power": -3}})", "initial_scale_power"},
      {R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage"},
      {R"({"zero_optimization": {"reduce_bucket_size": 1e30}})", "reduce_bucket_size"},
      {R"({"zero_optimization": {"reduce_bucket_size": -1}})", "reduce_bucket_size"},
      {R"({"zero_optimization": true})", "object"},
      {R"({"bf16": true})", "object"},
      {R"({"bf16": {"enabled": 1}})", "true or false"},
      {R"({"tensorboard": {"enabled": 1}})", "true or false"},
      {R"({"optimizer": {"type": "Adam", "params": 3}})", "object"},
      {R"({"train_batch_size": "many"})", "train_batch_size"},
  };
  for (const auto& [json, part] : cases) {
    expect_parts(refusal_of_json(json), {"a.json", part});
  }
}

}  // namespace
}  // namespace trireme::deepspeed_names_test
