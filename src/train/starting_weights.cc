#include "train/starting_weights.h"

#include <filesystem>
#include <map>
#include <set>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/tensor_source.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/shell_text.h"
#include "trireme/settings/run_folder.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;

std::string what_is_missing(const std::string& path) {
  if (!fs::exists(path)) {
    return ", which does not exist";
  }
  if (fs::is_directory(path + "/fold-1")) {
    return concat(", a cross-validated run: name one of its folds, as {}/fold-1", {path});
  }
  return is_run_folder(path)
             ? concat(
                   ", a run that has saved no weights (it did not finish, or was told not to "
                   "save them): train it again (trireme train --config {} --run NEW) and take "
                   "those",
                   {shell_text({path + "/config.json"})})
             : "";
}

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
      concat("weights_from: expected a run with checkpoints or model.safetensors, a checkpoint, or "
             "a safetensors file, found \"{}\"{}",
             {path, what_is_missing(path)}));
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

// What of a source fits into a module.
struct Fitting {
  std::map<std::string, std::size_t> tensors;  // of the source, by each name that the module has
  LoadDifferences differences;
};

Fitting fitting_into(const torch::nn::Module& module, const TensorSource& source) {
  const std::map<std::string, at::Tensor> wanted = tensors_of(module);
  std::map<const at::TensorImpl*, std::size_t> fitting;
  std::set<const at::TensorImpl*> known;  // one that is tied comes under any of its names
  Fitting result;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const StateTensor& found = source.tensors()[i];
    const auto mine = wanted.find(found.name);
    if (mine == wanted.end()) {
      result.differences.unexpected.push_back(found.name);
      continue;
    }
    known.insert(mine->second.unsafeGetTensorImpl());
    const at::IntArrayRef shape(found.shape);
    if (mine->second.sizes() == shape) {
      fitting[mine->second.unsafeGetTensorImpl()] = i;
    } else {
      result.differences.other_shape.push_back(
          concat(found.name, ": expected ", mine->second.sizes(), ", found ", shape));
    }
  }
  for (const auto& [name, tensor] : wanted) {
    const auto found = fitting.find(tensor.unsafeGetTensorImpl());
    if (found != fitting.end()) {
      result.tensors[name] = found->second;
    } else if (known.count(tensor.unsafeGetTensorImpl()) == 0) {
      result.differences.missing.push_back(name);
    }
  }
  return result;
}

// All elements of a tensor of the source in the order that they have in `like`, rounded to `type`.
at::Tensor values_of(const TensorSource& source,
                     std::size_t index,
                     at::ScalarType type,
                     const StateTensor& like) {
  at::Tensor values =
      at::empty(source.tensors()[index].shape, scalar_type_of(source.tensors()[index].dtype));
  source.read(index, static_cast<std::byte*>(values.mutable_data_ptr()));
  if (values.scalar_type() == at::kBool) {
    values = values.view(at::kByte).ne(0);  // also where another program has written 255 for it
  }
  const std::vector<std::int64_t> strides =
      like.strides.empty() ? row_strides(like.shape) : like.strides;
  return at::empty_strided(like.shape, strides, scalar_type_of(like.dtype)).copy_(values.to(type));
}

}  // namespace

void begin_with_weights(const TrainSettings& settings,
                        const torch::nn::Module& module,
                        Resumable& engine,
                        const std::function<void(const std::string& text)>& say) {
  std::unique_ptr<TensorSource> source;
  Fitting fitting;
  engine.restore([&](const StateView& into) {
    source = open_source(settings.weights_from);
    fitting = fitting_into(module, *source);
    TRIREME_CHECK(fitting.differences.empty() || settings.weights_partial,
                  "weights_from: \"{}\" does not fit the model:\n{}\nUse weights of this model, or "
                  "--weights-partial to load what fits",
                  {source->path(), fitting.differences.to_string()});
    TRIREME_CHECK(!fitting.tensors.empty(),
                  "weights_from: nothing of \"{}\" fits the model",
                  {source->path()});
    const at::NoGradGuard no_grad;
    const std::map<std::string, at::Tensor> tensors = tensors_of(module);
    // Where the engine rounds parameters, its masters are not; where they are 16-bit themselves,
    // masters begin with what those can hold.
    const bool rounds = settings.precision == TrainPrecision::kBFloat16 ||
                        settings.precision == TrainPrecision::kFloat16;
    for (const StateSlice& slice : into.slices) {
      const StateTensor& tensor = into.tensors[slice.tensor];
      const auto found = fitting.tensors.find(tensor.name);
      if (found == fitting.tensors.end() ||
          (tensor.kind != kWeightKind && tensor.kind != kBufferKind)) {
        continue;
      }
      const at::ScalarType type =
          rounds ? scalar_type_of(tensor.dtype) : tensors.at(tensor.name).scalar_type();
      const at::Tensor values = values_of(*source, found->second, type, tensor);
      const std::size_t bytes = dtype_bytes(tensor.dtype);
      slice.write(0,
                  static_cast<const std::byte*>(values.const_data_ptr()) +
                      static_cast<std::size_t>(slice.range.begin) * bytes,
                  static_cast<std::size_t>(slice.range.size()) * bytes);
    }
  });
  std::set<std::size_t> loaded;
  for (const auto& [name, tensor] : fitting.tensors) {
    loaded.insert(tensor);
  }
  say(concat(
      "starting from the weights of ", source->path(), ", ", counted(loaded.size(), "tensor")));
  if (!fitting.differences.empty()) {
    say("not loaded from there:\n" + fitting.differences.to_string());
  }
}

}  // namespace trireme::detail
