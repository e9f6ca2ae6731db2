#include "train/starting_weights.h"

#include <filesystem>
#include <map>
#include <set>

#include <ATen/ops/empty.h>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/tensor_source.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<TensorSource> open_source(const std::string& path) {
  if (fs::is_regular_file(path)) {
    return weights_of_safetensors(path);
  }
  if (fs::is_regular_file(fs::path(path) / Manifest::kFileName)) {
    return weights_of_checkpoint(path);
  }
  // Of a run, and of what `ckpt import` has made.
  for (const std::string& folder : {path + "/checkpoints", path}) {
    const CheckpointFolder checkpoints(folder);
    if (const auto newest = checkpoints.newest()) {
      return weights_of_checkpoint(checkpoints.path_of(*newest));
    }
  }
  if (fs::is_regular_file(path + "/model.safetensors")) {
    return weights_of_safetensors(path + "/model.safetensors");
  }
  throw ConfigError(
      concat("weights_from: expected a run with checkpoints or model.safetensors, a "
             "checkpoint, or a safetensors file, found \"",
             path,
             "\"",
             fs::exists(path) ? "" : ", which does not exist"));
}

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      tensors[item.key()] = item.value();
    }
  }
  return tensors;
}

}  // namespace

void begin_with_weights(const TrainSettings& settings,
                        torch::nn::Module& module,
                        const std::function<void(const std::string& text)>& say) {
  const std::unique_ptr<TensorSource> source = open_source(settings.weights_from);
  const std::map<std::string, at::Tensor> wanted = tensors_of(module);
  std::vector<std::pair<at::Tensor, std::size_t>> fitting;
  std::set<const at::TensorImpl*> known;  // one that is tied comes under any of its names
  LoadDifferences differences;
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    const StateTensor& found = source->tensors()[i];
    const auto mine = wanted.find(found.name);
    if (mine == wanted.end()) {
      differences.unexpected.push_back(found.name);
      continue;
    }
    known.insert(mine->second.unsafeGetTensorImpl());
    const at::IntArrayRef shape(found.shape);
    if (mine->second.sizes() == shape) {
      fitting.emplace_back(mine->second, i);
    } else {
      differences.other_shape.push_back(
          concat(found.name, ": expected ", mine->second.sizes(), ", found ", shape));
    }
  }
  for (const auto& [name, tensor] : wanted) {
    if (known.count(tensor.unsafeGetTensorImpl()) == 0) {
      differences.missing.push_back(name);
    }
  }
  TRIREME_CHECK(differences.empty() || settings.weights_partial,
                "weights_from: \"",
                source->path(),
                "\" does not fit the model:\n",
                differences.to_string(),
                "\nUse weights of this model, or --weights-partial to load what fits");
  TRIREME_CHECK(
      !fitting.empty(), "weights_from: nothing of \"", source->path(), "\" fits the model");
  const at::NoGradGuard no_grad;
  for (const auto& [mine, index] : fitting) {
    const at::Tensor values =
        at::empty(mine.sizes(), scalar_type_of(source->tensors()[index].dtype));
    source->read(index, static_cast<std::byte*>(values.mutable_data_ptr()));
    mine.copy_(values.scalar_type() == at::kBool ? values.view(at::kByte).ne(0) : values);
  }
  say(concat(
      "starting from the weights of ", source->path(), ", ", counted(fitting.size(), "tensor")));
  if (!differences.empty()) {
    say("not loaded from there:\n" + differences.to_string());
  }
}

}  // namespace trireme::detail
