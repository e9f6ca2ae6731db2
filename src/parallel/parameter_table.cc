#include "parallel/parameter_table.h"

#include <unordered_map>

#include <ATen/ops/from_blob.h>
#include <torch/nn/modules/embedding.h>

#include "parallel/operator_watch.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// FNV-1a: the same on every machine, which std::hash does not promise.
class Fingerprint {
 public:
  void add(const std::string& text) {
    for (const char c : text) {
      value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    }
    add(static_cast<std::int64_t>(text.size()));
  }
  void add(std::int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ =
          (value_ ^ (static_cast<std::uint64_t>(number) >> (8 * byte) & 0xFF)) * 0x100000001B3ULL;
    }
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

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
         (parameter.sparse ? ", sparse gradients" : "");
}

// The text of rank `from`, on every rank.
std::string broadcast_text(std::string text, int from, Communicator& ranks) {
  std::vector<std::int64_t> size = {static_cast<std::int64_t>(text.size())};
  ranks.broadcast(size, from).wait();
  text.resize(static_cast<std::size_t>(size[0]));
  ranks.broadcast({text.data(), size[0], Dtype::kUint8}, from).wait();
  return text;
}

}  // namespace

at::Tensor view_of(const Parameter& parameter,
                   void* flat,
                   at::ScalarType type,
                   std::shared_ptr<const void> owner) {
  return at::from_blob(
      flat,
      parameter.sizes,
      parameter.strides,
      [owner = std::move(owner)](void*) {},
      at::TensorOptions().dtype(type));
}

std::vector<Parameter> list_parameters(torch::nn::Module& model) {
  std::vector<Parameter> parameters;
  std::unordered_map<const void*, std::string> by_tensor;
  std::unordered_map<const void*, std::string> by_storage;
  for (const auto& item : model.named_parameters(/*recurse=*/true)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) {
      continue;
    }
    if (!by_tensor.emplace(tensor.unsafeGetTensorImpl(), item.key()).second) {
      continue;  // tied: the same tensor under another name
    }
    TRIREME_CHECK(tensor.device().is_cpu(),
                  "parameter ",
                  item.key(),
                  " is on ",
                  tensor.device().str(),
                  ": this build trains on the CPU, move the model with model->to(torch::kCPU)");
    TRIREME_CHECK(tensor.layout() == at::kStrided,
                  "parameter ",
                  item.key(),
                  " is not dense: a sparse parameter cannot be divided among ranks");
    TRIREME_CHECK(
        !tensor.requires_grad() || tensor.is_leaf(),
        "parameter ",
        item.key(),
        " is the result of an operation, so it has no gradient of its own: register a leaf "
        "tensor");
    if (Watched* watched = watched_of(tensor)) {
      TRIREME_CHECK(!watched->has_engine(),
                    "parameter ",
                    item.key(),
                    " belongs to another engine: call its unwrap() before building a new one");
    }
    if (tensor.numel() > 0 && watched_of(tensor) == nullptr) {
      const auto [entry, fresh] =
          by_storage.emplace(tensor.storage().unsafeGetStorageImpl(), item.key());
      TRIREME_CHECK(
          fresh,
          "parameters ",
          entry->second,
          " and ",
          item.key(),
          " are two tensors on one memory (tied with set_data?): to tie them, register the "
          "same tensor under both names");
    }
    Parameter parameter;
    parameter.name = item.key();
    parameter.tensor = tensor;
    parameter.sizes = tensor.sizes().vec();
    parameter.numel = tensor.numel();
    parameter.dtype = dtype_of(tensor.scalar_type());
    parameter.trainable = tensor.requires_grad();
    // Memory formats (channels_last) are kept; memory with holes or overlaps becomes contiguous.
    if (tensor.is_non_overlapping_and_dense()) {
      parameter.strides = tensor.strides().vec();
    } else {
      const auto strides = c10::contiguous_strides(parameter.sizes);
      parameter.strides.assign(strides.begin(), strides.end());
    }
    parameters.push_back(std::move(parameter));
  }
  TRIREME_CHECK(!parameters.empty(),
                "the module ",
                model.name(),
                " has no parameters: there is nothing to train");
  const auto mark_sparse = [&](const at::Tensor& weight) {
    for (Parameter& parameter : parameters) {
      if (parameter.tensor.unsafeGetTensorImpl() == weight.unsafeGetTensorImpl()) {
        parameter.sparse = parameter.trainable;
        const auto strides = c10::contiguous_strides(parameter.sizes);
        parameter.strides.assign(strides.begin(), strides.end());  // rows are runs
      }
    }
  };
  for (const auto& module : model.modules()) {
    if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse()) {
      mark_sparse(embedding->weight);
    }
    if (const auto* bag = module->as<torch::nn::EmbeddingBagImpl>();
        bag != nullptr && bag->options.sparse()) {
      mark_sparse(bag->weight);
    }
  }
  return parameters;
}

void check_same_model(const std::vector<Parameter>& parameters, Communicator& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  Fingerprint all;
  for (const Parameter& parameter : parameters) {
    all.add(describe(parameter));
  }
  const std::vector<std::int64_t> mine = {all.value(),
                                          static_cast<std::int64_t>(parameters.size())};
  std::vector<std::int64_t> everyone(2 * size);
  ranks.all_gather(mine, everyone).wait();
  for (std::size_t rank = 1; rank < size; ++rank) {
    if (everyone[2 * rank] == everyone[0] && everyone[2 * rank + 1] == everyone[1]) {
      continue;
    }
    // All ranks are here, with the same `rank`: find where its list leaves that of rank 0.
    const auto count = std::min(everyone[1], everyone[2 * rank + 1]);
    std::string texts[2];
    for (std::int64_t i = 0; i <= count; ++i) {
      const std::string own = i < static_cast<std::int64_t>(parameters.size())
                                  ? describe(parameters[static_cast<std::size_t>(i)])
                                  : "nothing more";
      texts[0] = broadcast_text(own, 0, ranks);
      texts[1] = broadcast_text(own, static_cast<int>(rank), ranks);
      if (texts[0] != texts[1]) {
        break;
      }
    }
    throw ConfigError(concat("the model differs between ranks: rank 0 has ",
                             texts[0],
                             " where rank ",
                             rank,
                             " has ",
                             texts[1],
                             ": build the same model on every rank"));
  }
}

}  // namespace trireme::detail
