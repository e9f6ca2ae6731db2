#include "trained_run.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/error.h"
#include "trireme/core/shell_text.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"
#include "trireme/tensor/torch_cuda.h"
#include "trireme/train/run_recorder.h"
#include "trireme/train/weights.h"

namespace trireme::worker {

TrainSettings settings_to_use(const std::string& run) {
  const std::string path = run + "/config.json";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  TRIREME_CHECK(file.good(), "\"", path, "\" could not be read");
  TrainSettings settings = recorded_settings(text.str(), path);
  settings.recompute = false;
  settings.dropout = 0;
  return settings;
}

std::unique_ptr<TensorSource> RunWeights::tensors() const {
  return is_checkpoint ? weights_of_checkpoint(path) : weights_of_safetensors(path);
}

void RunWeights::load(torch::nn::Module& module) const {
  if (is_checkpoint) {
    load_weights(*tensors(), module);
  } else {
    load_weights(path, module);
  }
}

std::vector<std::string> names_of_weights() {
  return {"auto", "model", "best", "average", "checkpoint"};
}

void check_no_folds(const std::string& run) {
  TRIREME_CHECK(!std::filesystem::exists(run + "/fold-1"),
                "\"{}\" was cross-validated, and has a model for each fold: name one, as {}/fold-1",
                {run, run});
}

namespace {

// Of a run without model.safetensors.
std::string why_no_weights(const std::string& run) {
  std::ifstream file(run + "/summary.json");
  const auto summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.value("status", nlohmann::json()) == "finished"
             ? "the run has no model.safetensors (--save-weights off, or it was removed)"
             : "the run has not finished";
}

}  // namespace

RunWeights weights_in(const std::string& run, const std::string& which) {
  namespace fs = std::filesystem;
  using detail::concat;
  const bool may_be_checkpoint = which == "auto" || which == "checkpoint";
  const std::string file = concat(run, "/", may_be_checkpoint ? "model" : which, ".safetensors");
  if (which != "checkpoint" && fs::exists(file)) {
    return {.path = file};
  }
  check_no_folds(run);
  const std::string folder = concat(run, "/", kCheckpointsFolder);
  const auto newest = fs::is_directory(folder) ? CheckpointFolder(folder).newest() : std::nullopt;
  TRIREME_CHECK(
      may_be_checkpoint && newest,
      "expected weights in \"{}\", found none: {}{}{}",
      {which == "checkpoint" ? folder : file,
       which == "best"         ? "nothing was evaluated"
       : which == "average"    ? "the run has no moving average (--ema-decay)"
       : which == "checkpoint" ? "the run has saved no checkpoint (--save-every N saves them)"
                               : "the run has not finished, or was told not to save them",
       newest ? "; --weights checkpoint takes its newest checkpoint" : "",
       newest || fs::exists(run + "/model.safetensors")
           ? ""
           : concat("; to train it again: trireme train --config {} --run NEW",
                    {detail::shell_text({run + "/config.json"})})});
  const std::string path = CheckpointFolder(folder).path_of(*newest);
  return {path,
          /*is_checkpoint=*/true,
          which == "auto" ? concat(why_no_weights(run), ": the weights are those of ", path) : ""};
}

at::Device device_to_use(const TrainSettings& settings, const std::string& which) {
  if (which == "cpu" || (which == "auto" && settings.device != TrainDevice::kCuda)) {
    return at::kCPU;
  }
  const UsableGpus gpus = usable_gpus();
  TRIREME_CHECK(!gpus.names.empty() || which == "auto",
                "--device: expected a GPU that can be used for cuda, found none: {}. Use --device "
                "cpu",
                {gpus.why_none});
  if (gpus.names.empty()) {
    std::fprintf(stderr,
                 "trireme: the run was trained on a GPU, and this is computed on the CPU, whose "
                 "results may differ a little: %s\n",
                 gpus.why_none.c_str());
    return at::kCPU;
  }
  return use_gpu(0);
}

std::vector<std::string> names_of_devices() {
  return {"auto", "cpu", "cuda"};
}

std::string what_answers(const std::string& run, const TrainSettings& settings) {
  const std::string command = model_kind(settings.model).command;
  const std::string typed = detail::shell_text({run});
  return command == "sample"    ? detail::concat("use trireme sample ", typed)
         : command == "predict" ? detail::concat("use trireme predict ", typed, " --data FILE")
                                : detail::concat(
                                      "its evaluation is in {}/summary.json, and trireme train "
                                      "--weights-from {} begins with its weights",
                                      {run, typed});
}

}  // namespace trireme::worker
