#include "trireme/settings/device_choice.h"

#include <algorithm>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"

namespace trireme {

using detail::concat;

namespace {

constexpr char kOnTheCpu[] =
    "To train on the CPU: --device cpu; a run that began on a GPU is resumed there with --device "
    "cpu "
    "--allow-changes";

}  // namespace

std::string why_not_on_gpu(const TrainSettings& s) {
  if (!s.model.empty() && model_kind(s.model).samples == SampleKind::kSparse) {
    return concat("the model ", s.model, " has sparse gradients: choose another --model");
  }
  if (s.compress != "none" && s.compress != "auto") {
    return concat("gradients are not compressed there: leave out --compress ", s.compress);
  }
  if (s.round_weights != "none") {
    return concat("weights are not rounded there: leave out --round-weights ", s.round_weights);
  }
  if (s.prune > 0) {
    return concat("weights are not pruned there: leave out --prune ", s.prune);
  }
  if (s.sync != Synchronisation::kExact) {
    return concat("ranks stay in step there, in every step: leave out --sync ",
                  value_text("sync", s));
  }
  return "";
}

namespace {

// What only a GPU has a use for.
void check_on_cpu(const TrainSettings& s, const std::string& why) {
  TRIREME_CHECK(s.offload != "optimizer",
                "offload: optimizer is for a model on a GPU, and this one is trained on the CPU{}, "
                "whose memory its optimizer states are in anyway: leave it out, or use --offload "
                "disk:DIR",
                {why.empty() ? "" : concat(" (", why, ")")});
}

}  // namespace

DeviceChoice choose_device(TrainSettings settings, const UsableGpus& gpus) {
  DeviceChoice choice{std::move(settings)};
  TrainSettings& s = choice.settings;
  if (s.device == TrainDevice::kCpu) {
    check_on_cpu(s, "");
    return choice;
  }
  const std::string why = gpus.names.empty() ? "" : why_not_on_gpu(s);
  if (s.device == TrainDevice::kCuda) {
    TRIREME_CHECK(!gpus.names.empty(),
                  "device: expected a GPU that can be used for cuda, found none: {}. {}",
                  {gpus.why_none, kOnTheCpu});
    TRIREME_CHECK(why.empty(), "device: on a GPU, {}. {}", {why, kOnTheCpu});
  } else if (gpus.names.empty() || !why.empty()) {
    check_on_cpu(s, gpus.names.empty() ? "no GPU can be used" : why);
    s.device = TrainDevice::kCpu;
    if (!why.empty()) {
      choice.remark = concat("training on the CPU and not on ", gpus_text(gpus), ": ", why);
    }
    return choice;
  }
  s.device = TrainDevice::kCuda;
  if (s.ranks == 0) {
    s.ranks = static_cast<std::int64_t>(gpus.names.size());
  }
  return choice;
}

std::string gpus_text(const UsableGpus& gpus) {
  std::vector<std::string> kinds;
  for (const std::string& name : gpus.names) {
    if (std::ranges::find(kinds, name) == kinds.end()) {
      kinds.push_back(name);
    }
  }
  return concat("{} ({})", {detail::counted(gpus.names.size(), "GPU"), detail::listed(kinds)});
}

int gpu_of_rank(int local_rank, const UsableGpus& gpus) {
  return local_rank % static_cast<int>(gpus.names.size());
}

}  // namespace trireme
