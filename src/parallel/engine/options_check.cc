#include "parallel/engine/options_check.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/driver.h"
#include "parallel/model/operator_watch.h"
#include "trireme/shard/stage.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// Also tells two of the same name apart that encode differently.
std::string compress_text(const Compressor* compressor) {
  if (compressor == nullptr) {
    return "no compressor";
  }
  const Compressor::Format& format = compressor->format();
  return concat(
      "the compressor {}, which makes {} bytes of {} elements, with {}, momentum {} and rank {}, "
      "and encodes test blocks as {}",
      {format.name,
       format.bytes,
       format.block,
       format.feedback ? "feedback" : "no feedback",
       exact_text(format.momentum),
       format.rank,
       try_compressor(*compressor)});
}

std::string prune_text(const Pruning& prune) {
  return prune.fraction == 0 ? "nothing pruned"
                             : concat("prune {} between {} and {} every {}, of {}",
                                      {exact_text(prune.fraction),
                                       prune.begin,
                                       prune.end,
                                       prune.every,
                                       prune.which ? "chosen parameters" : "matrices"});
}

}  // namespace

void check_options(const EngineOptions& options) {
  TRIREME_CHECK(options.zero >= 0 && options.zero <= 3,
                "EngineOptions::zero must be 0 (DDP), 1, 2 or 3, found ",
                options.zero);
  check_placement("EngineOptions::placement", options.placement, options.zero);
  TRIREME_CHECK(options.micro_batches >= 0 && options.accumulate >= 1,
                "a step needs at least one micro-batch: EngineOptions::micro_batches is {} and "
                "accumulate is {}",
                {options.micro_batches, options.accumulate});
  TRIREME_CHECK(
      options.micro_batches == 0 || options.accumulate == 1,
      "give EngineOptions::micro_batches (of all ranks) or accumulate (of each rank), not "
      "both");
  TRIREME_CHECK(options.bucket_count >= 1, "EngineOptions::bucket_count must be at least 1");
  TRIREME_CHECK(options.clip_norm >= 0 && options.clip_value >= 0,
                "clipping bounds cannot be negative");
  TRIREME_CHECK(options.ema_decay >= 0 && options.ema_decay < 1,
                "EngineOptions::ema_decay must be in [0, 1), found ",
                options.ema_decay);
  TRIREME_CHECK(options.compress_check >= 0 && (options.compress_check == 0 || options.compress),
                "EngineOptions::compress_check must be 0, or a number of steps with "
                "EngineOptions::compress, found {}{}",
                {options.compress_check, options.compress ? "" : " and no compressor"});
  if (options.compress) {
    const Compressor::Format& format = options.compress->format();
    TRIREME_CHECK(!options.gradient_hook,
                  "give EngineOptions::compress ({}) or gradient_hook, not both: each is a way to "
                  "sum gradients",
                  {format.name});
    TRIREME_CHECK(!format.feedback || options.check_gradients,
                  "compressor {} keeps what it leaves out, where a gradient that is not finite "
                  "would stay for good: leave EngineOptions::check_gradients on",
                  {format.name});
    try_compressor(*options.compress);
  }
  const Offload& offload = options.offload;
  TRIREME_CHECK((offload.to == Offload::To::kDisk) == !offload.folder.empty(),
                "Offload::folder: expected a folder for Offload::To::kDisk and none otherwise, "
                "found \"{}\"",
                {offload.folder});
  TRIREME_CHECK(!offload.any() || !options.round_weights,
                "EngineOptions::offload: round_weights keeps its masters beside the parameters: "
                "leave one of the two out");
  TRIREME_CHECK(!offload.any() || options.prune.fraction == 0,
                "EngineOptions::offload: prune looks at masters between updates, beside the "
                "parameters: leave one of the two out");
  const Pruning& prune = options.prune;
  TRIREME_CHECK(prune.fraction >= 0 && prune.fraction < 1,
                "Pruning::fraction must be in [0, 1), found ",
                prune.fraction);
  TRIREME_CHECK(
      prune.fraction == 0 || (prune.begin >= 0 && prune.end >= prune.begin && prune.every >= 1),
      "Pruning: expected a first step of 0 or more, a last one not before it and at least "
      "one step from time to time, found begin {}, end {}, every {}",
      {prune.begin, prune.end, prune.every});
  if (options.round_weights) {
    const Compressor::Format& format = options.round_weights->format();
    TRIREME_CHECK(!format.feedback,
                  "EngineOptions::round_weights: {} leaves out what a later step makes good, and "
                  "weights are rounded anew in each: use int8, bf16 or fp16",
                  {format.name});
    try_compressor(*options.round_weights);
  }
}

void check_rounded(const std::vector<Parameter>& parameters, const EngineOptions& options) {
  for (const Parameter& parameter : parameters) {
    if (!options.round_weights || !parameter.trainable) {
      continue;
    }
    TRIREME_CHECK(
        parameter.dtype == Dtype::kFloat32,
        "EngineOptions::round_weights ({}): parameter {} is {}, and what is rounded is "
        "float32: leave round_weights out, or the precision as it is",
        {options.round_weights->format().name, parameter.name, dtype_name(parameter.dtype)});
    TRIREME_CHECK(!parameter.bound,
                  "EngineOptions::round_weights ({}): the rows of {} have a max_norm, which they "
                  "would not keep when they are rounded: leave one of the two out",
                  {options.round_weights->format().name, parameter.name});
  }
}

void check_offload(const ModelPlan& plan, const EngineOptions& options) {
  const Offload& offload = options.offload;
  if (!offload.any()) {
    return;
  }
  TRIREME_CHECK(offload.to != Offload::To::kHost || !plan.device.is_host(),
                "EngineOptions::offload: the model is on the CPU, and so in the host's memory are "
                "its optimizer states: leave it out, or offload to a disk (Offload::disk)");
  for (const Parameter& parameter : plan.parameters) {
    const char* const what = !parameter.trainable ? nullptr
                             : parameter.sparse   ? "has sparse gradients"
                             : parameter.bound    ? "has rows with a max_norm"
                                                  : nullptr;
    TRIREME_CHECK(what == nullptr,
                  "EngineOptions::offload: parameter {} {}, whose updates take rows here and there "
                  "and not all in order: leave one of the two out",
                  {parameter.name, what == nullptr ? "" : what});
  }
}

void check_gpu_options(const ModelPlan& plan,
                       const EngineOptions& options,
                       const Communicator& ranks) {
  if (plan.device.is_host()) {
    return;
  }
  const auto refuse = [&](bool asked, const char* what) {
    TRIREME_CHECK(!asked,
                  "{}: engines on a GPU ({}) do not have this yet: leave it out, or move the model "
                  "to the CPU",
                  {what, device_name(plan.device)});
  };
  refuse(!ranks.one_machine(), "several machines");
  refuse(options.shard_group != ShardGroup::kWorld, "EngineOptions::shard_group");
  refuse(static_cast<bool>(options.compress), "EngineOptions::compress");
  refuse(static_cast<bool>(options.round_weights), "EngineOptions::round_weights");
  refuse(options.prune.fraction > 0, "EngineOptions::prune");
  refuse(static_cast<bool>(options.gradient_hook), "EngineOptions::gradient_hook");
  for (const Parameter& parameter : plan.parameters) {
    refuse(parameter.sparse, concat("sparse gradients of ", parameter.name).c_str());
    refuse(parameter.complex, concat("the complex parameter ", parameter.name).c_str());
    refuse(parameter.bound.has_value(), concat("max_norm of ", parameter.name).c_str());
    refuse(watched_of(parameter.tensor) != nullptr,
           concat("memory that another engine or build_sharded has made, of ", parameter.name)
               .c_str());
  }
  device::open(plan.device);
}

void check_stream(const ModelPlan& plan) {
  if (plan.device.is_host()) {
    return;
  }
  const at::Device device = torch_device_of(plan.device);
  const c10::impl::VirtualGuardImpl streams(device.type());
  TRIREME_CHECK(streams.getStream(device) == streams.getDefaultStream(device),
                "backward() was called with another stream of {} than the default one current: "
                "engines work on the default stream; leave the scope of the stream first",
                {device.str()});
}

std::vector<std::string> settings_of(const EngineOptions& o, const Optimizer& optimizer) {
  const int threads = at::get_num_threads();
  const LossScalerOptions& scale = o.loss_scale;
  return {
      concat(threads, threads == 1 ? " thread" : " threads"),
      concat("the optimizer ", optimizer.name(), ", ", optimizer.settings()),
      concat("zero ", o.zero),
      concat("micro_batches ", o.micro_batches, ", accumulate ", o.accumulate),
      concat(
          "sum_order ", static_cast<int>(o.sum_order), ", divisor ", static_cast<int>(o.divisor)),
      concat("precision ", static_cast<int>(o.precision), ", scale_loss ", o.scale_loss),
      concat("loss_scale.initial {}, growth {}, backoff {}, growth_interval {}, least {}, most {}",
             {exact_text(scale.initial),
              exact_text(scale.growth),
              exact_text(scale.backoff),
              scale.growth_interval,
              exact_text(scale.least),
              exact_text(scale.most)}),
      concat("clip_norm ", exact_text(o.clip_norm), ", clip_value ", exact_text(o.clip_value)),
      concat("ema_decay ", exact_text(o.ema_decay)),
      concat("sparse_update ", static_cast<int>(o.sparse_update)),
      concat("check_gradients ", o.check_gradients),
      concat("units ", listed_or_none(o.units)),
      concat("unit_bytes ", o.unit_bytes, ", bucket_bytes ", o.bucket_bytes),
      concat("bucket_count ", o.bucket_count),
      concat("split ", static_cast<int>(o.split)),
      concat("shares ", listed_or_none(o.shares, exact_text)),
      concat("shard_group ", static_cast<int>(o.shard_group)),
      concat("broadcast_buffers ", o.broadcast_buffers),
      concat(o.gradient_hook ? "a" : "no", " gradient hook"),
      compress_text(o.compress.get()),
      concat("compress_check ", o.compress_check),
      concat("weights rounded by ", compress_text(o.round_weights.get())),
      prune_text(o.prune),
      concat("offload ", static_cast<int>(o.offload.to)),
  };
}

}  // namespace trireme::detail
