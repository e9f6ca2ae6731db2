#include "parallel/model/parameter_table.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <torch/nn/modules/embedding.h>

#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/shard/range.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

std::string describe(const Parameter& parameter) {
  std::string text = concat(parameter.name, " ", dtype_name(parameter.dtype), "[");
  for (std::size_t i = 0; i < parameter.sizes.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", parameter.sizes[i]);
  }
  text += "], strides [";
  for (std::size_t i = 0; i < parameter.strides.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", parameter.strides[i]);
  }
  return text + "]" + (parameter.trainable ? "" : ", frozen") +
         (parameter.sparse ? ", sparse gradients" : "") + (parameter.complex ? ", complex" : "") +
         (parameter.bound ? concat(", rows of norm ",
                                   exact_text(parameter.bound->norm_type),
                                   " up to ",
                                   exact_text(parameter.bound->max_norm))
                          : "");
}

std::string describe(const std::string& name, const at::Tensor& buffer) {
  return buffer.defined() ? concat("buffer ", name, " ", buffer.scalar_type(), buffer.sizes())
                          : concat("buffer ", name, ", undefined");
}

bool is_usable(at::Device device, Gpus gpus) {
  return device.is_cpu() || (gpus == Gpus::kYes && device.is_cuda());
}

void check_device(const torch::nn::Module& model, at::Device device) {
  for (const auto& item : model.named_buffers()) {
    const at::Tensor& buffer = item.value();
    TRIREME_CHECK(!buffer.defined() || !buffer.is_meta(),
                  "buffer {} has no values (it is on the device meta): give it some before the "
                  "engine is built",
                  {item.key()});
    TRIREME_CHECK(!buffer.defined() || buffer.device().is_cpu() || buffer.device() == device,
                  "buffer {} is on {}, but the parameters are on {}: move the model with "
                  "model->to()",
                  {item.key(), buffer.device().str(), device.str()});
  }
}

// They travel as bytes.
void check_dense(const torch::nn::Module& model) {
  for (const auto& item : model.named_buffers()) {
    const at::Tensor& buffer = item.value();
    TRIREME_CHECK(!buffer.defined() || buffer.layout() == at::kStrided,
                  "buffer {} is not dense: it cannot be copied from rank to rank; register what "
                  "to_dense() returns",
                  {item.key()});
  }
}

// Where in its storage a tensor's elements are.
Range extent_of(const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return {tensor.storage_offset(), last + 1};
}

// A parameter under its first name.
struct Named {
  std::string name;
  at::Tensor tensor;
};

// Of the parameters on one storage: none overlaps another (they may lie side by side, as a model
// that was saved in an engine and loaded again has them), and no other tensor is on it. The engine
// moves parameters: a view that somebody keeps would never see an update.
void check_sharers(const std::vector<Named>& sharers) {
  for (std::size_t one = 0; one < sharers.size(); ++one) {
    for (std::size_t other = one + 1; other < sharers.size(); ++other) {
      TRIREME_CHECK(
          intersection(extent_of(sharers[one].tensor), extent_of(sharers[other].tensor)).empty(),
          "parameters {} and {} are two tensors on one memory (tied with set_data?): to tie them, "
          "register the same tensor under both names",
          {sharers[one].name, sharers[other].name});
    }
  }
  TRIREME_CHECK(sharers.front().tensor.storage().use_count() <= sharers.size(),
                "the memory of parameter ",
                sharers.front().name,
                " is also that of another tensor, which would never see an update, because an "
                "engine moves parameters: a module must make views of them (narrow, view, detach) "
                "in forward(), not keep them; a copy to compare with needs clone()");
}

// In memory that an engine has made, where parameters lie side by side.
bool is_an_engines(const at::Tensor& tensor) {
  const Watched* watched = watched_of(tensor);
  return watched != nullptr && watched->holder() != Watched::Holder::kNoEngineYet;
}

}  // namespace

std::vector<std::int64_t> real_sizes(const at::Tensor& tensor) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  if (tensor.is_complex()) {
    sizes.push_back(2);
  }
  return sizes;
}

std::vector<std::int64_t> real_strides(const at::Tensor& tensor) {
  std::vector<std::int64_t> strides = tensor.strides().vec();
  if (tensor.is_complex()) {
    for (std::int64_t& stride : strides) {
      stride *= 2;
    }
    strides.push_back(1);
  }
  return strides;
}

at::Tensor real_values(const Parameter& parameter) {
  return parameter.complex ? at::view_as_real(parameter.tensor.detach().resolve_conj())
                           : parameter.tensor;
}

at::Tensor view_of(const Parameter& parameter,
                   void* flat,
                   at::ScalarType type,
                   std::shared_ptr<const void> owner,
                   Device device) {
  const at::Device where = torch_device_of(device);
  return at::from_blob(
      flat,
      parameter.sizes,
      parameter.strides,
      [owner = std::move(owner)](void*) {},
      at::TensorOptions().dtype(type).device(where),
      where);
}

void check_own_memory(torch::nn::Module& model) {
  std::unordered_set<const void*> seen;
  std::unordered_map<const void*, std::vector<Named>> by_storage;
  for (const auto& item : model.named_parameters(/*recurse=*/true)) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 && !is_an_engines(tensor) &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      by_storage[tensor.storage().unsafeGetStorageImpl()].push_back({item.key(), tensor});
    }
  }
  for (const auto& [storage, sharers] : by_storage) {
    check_sharers(sharers);
  }
}

Device common_device_of(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    TRIREME_CHECK(parameter.tensor.device() == parameters.front().tensor.device(),
                  "parameter {} is on {} and parameter {} on {}: move the model to one device",
                  {parameters.front().name,
                   parameters.front().tensor.device().str(),
                   parameter.name,
                   parameter.tensor.device().str()});
  }
  return device_of(parameters.front().tensor.device());
}

namespace {

// What the parameters of embeddings have beyond others.
void mark_embeddings(torch::nn::Module& model, std::vector<Parameter>& parameters) {
  const auto parameter_of = [&](const at::Tensor& weight) {
    return std::ranges::find_if(parameters, [&](const Parameter& parameter) {
      return parameter.tensor.unsafeGetTensorImpl() == weight.unsafeGetTensorImpl();
    });
  };
  const auto mark_sparse = [&](const at::Tensor& weight) {
    if (const auto found = parameter_of(weight); found != parameters.end()) {
      found->sparse = found->trainable;
      const auto strides = c10::contiguous_strides(found->sizes);
      found->strides.assign(strides.begin(), strides.end());  // rows are runs
    }
  };
  for (const auto& module : model.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    if (const auto* embedding = module.value()->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) {
        mark_sparse(embedding->weight);
      }
      const auto found = parameter_of(embedding->weight);
      if (const auto& most = embedding->options.max_norm(); most && found != parameters.end()) {
        const RowBound bound{*most, embedding->options.norm_type()};
        TRIREME_CHECK(!found->bound || found->bound == bound,
                      "parameter {} is the weight of several embeddings, of which {} has another "
                      "max_norm or norm_type: give them the same",
                      {found->name, module.key()});
        found->bound = bound;
        const auto strides = c10::contiguous_strides(found->sizes);
        found->strides.assign(strides.begin(), strides.end());
      }
    }
    if (const auto* bag = module.value()->as<torch::nn::EmbeddingBagImpl>()) {
      TRIREME_CHECK(!bag->options.max_norm(),
                    "module {} is an EmbeddingBag with max_norm, which scales rows of its weight "
                    "in forward(), on each rank others: use an Embedding with max_norm and add up "
                    "what it returns, or scale rows after the step, inside of engine.gathered()",
                    {module.key()});
      if (bag->options.sparse()) {
        mark_sparse(bag->weight);
      }
    }
  }
}

}  // namespace

std::vector<Parameter> list_parameters(torch::nn::Module& model, Gpus gpus) {
  std::vector<Parameter> parameters;
  std::unordered_map<const void*, std::string> by_tensor;
  for (const auto& item : model.named_parameters(/*recurse=*/true)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) {
      continue;
    }
    if (!by_tensor.emplace(tensor.unsafeGetTensorImpl(), item.key()).second) {
      continue;  // tied: the same tensor under another name
    }
    TRIREME_CHECK(is_usable(tensor.device(), gpus),
                  "parameter {} is on {}: this is for models on the CPU{}, move the model with "
                  "model->to(torch::kCPU)",
                  {item.key(), tensor.device().str(), gpus == Gpus::kYes ? " or a GPU" : ""});
    TRIREME_CHECK(tensor.layout() == at::kStrided,
                  "parameter {} is not dense: a sparse parameter cannot be divided among ranks",
                  {item.key()});
    TRIREME_CHECK(!tensor.requires_grad() || tensor.is_leaf(),
                  "parameter {} is the result of an operation, so it has no gradient of its own: "
                  "register a leaf tensor",
                  {item.key()});
    if (Watched* watched = watched_of(tensor)) {
      TRIREME_CHECK(watched->holder() != Watched::Holder::kEngine,
                    "parameter ",
                    item.key(),
                    " belongs to another engine: call its unwrap() before building a new one");
    }
    Parameter parameter;
    parameter.name = item.key();
    parameter.tensor = tensor;
    parameter.trainable = tensor.requires_grad();
    parameter.complex = !parameter.trainable && (tensor.scalar_type() == at::kComplexFloat ||
                                                 tensor.scalar_type() == at::kComplexDouble);
    parameter.sizes = parameter.complex ? real_sizes(tensor) : tensor.sizes().vec();
    parameter.numel = parameter.complex ? 2 * tensor.numel() : tensor.numel();
    const auto dtype = find_dtype(parameter.complex ? c10::toRealValueType(tensor.scalar_type())
                                                    : tensor.scalar_type());
    TRIREME_CHECK(
        dtype,
        "parameter {} is of {}, which cannot be divided among ranks: expected float32, float64, "
        "float16 or bfloat16, or, if it is frozen, int64, int32, int16, int8, uint8, bool, "
        "complex64 or complex128{}",
        {item.key(),
         c10::toString(tensor.scalar_type()),
         tensor.is_complex() ? "; to train it, register torch::view_as_real() of it, and use "
                               "torch::view_as_complex() in forward()"
                             : ""});
    parameter.dtype = *dtype;
    // Memory formats (channels_last) are kept; memory with holes or overlaps becomes contiguous.
    if (tensor.is_non_overlapping_and_dense()) {
      parameter.strides = parameter.complex ? real_strides(tensor) : tensor.strides().vec();
    } else {
      const auto strides = c10::contiguous_strides(parameter.sizes);
      parameter.strides.assign(strides.begin(), strides.end());
    }
    parameters.push_back(std::move(parameter));
  }
  check_own_memory(model);
  TRIREME_CHECK(!parameters.empty(),
                "the module {} has no parameters: there is nothing to train",
                {model.name()});
  check_device(model, parameters.front().tensor.device());
  mark_embeddings(model, parameters);
  return parameters;
}

void check_same_model(const torch::nn::Module& model,
                      const std::vector<Parameter>& parameters,
                      Communicator& ranks) {
  if (ranks.size() > 1) {
    on_all_ranks(ranks, [&] { check_dense(model); });
  }
  std::vector<std::string> lines = {parameters.front().tensor.is_cuda() ? "parameters on a GPU"
                                                                        : "parameters on the CPU"};
  for (const Parameter& parameter : parameters) {
    lines.push_back(describe(parameter));
  }
  for (const auto& item : model.named_buffers()) {
    lines.push_back(describe(item.key(), item.value()));
  }
  check_same_on_all_ranks(ranks, "the model", lines, "build the same model on every rank");
}

}  // namespace trireme::detail
