#include "trireme/train/weights.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "trireme/archive/torch_archive.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace {

struct Named {
  std::string name;
  at::Tensor tensor;
};

std::vector<Named> tensors_of(const torch::nn::Module& module) {
  std::vector<Named> all;
  for (const auto& item : module.named_parameters()) {
    all.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      all.push_back({item.key(), item.value()});
    }
  }
  return all;
}

// Why a file of weights cannot have a tensor; empty where it can.
std::string refusal(const Named& each) {
  const at::ScalarType type = each.tensor.scalar_type();
  if (find_dtype(type) && each.tensor.layout() == at::kStrided) {
    return {};
  }
  return detail::concat(
      "the tensor {} cannot be saved: it is of {}{}; a file of weights has dense tensors of "
      "float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8 or bool{}",
      {each.name,
       c10::toString(type),
       each.tensor.layout() == at::kStrided ? "" : ", and not dense",
       c10::isComplexType(type) ? ": register torch::view_as_real() of it, and use "
                                  "torch::view_as_complex() in forward()"
                                : ""});
}

// Values of a file on their way to a tensor of the model.
void copy_values(const at::Tensor& to, const at::Tensor& from) {
  // Whatever is not 0 is true, also where another program has written 255 for it.
  to.copy_(from.scalar_type() == at::kBool ? from.view(at::kByte).ne(0) : from);
}

}  // namespace

void check_weights(const torch::nn::Module& module, const std::string& where) {
  for (const Named& each : tensors_of(module)) {
    const std::string reason = refusal(each);
    TRIREME_CHECK(reason.empty(), where, ": ", reason);
  }
}

void save_weights(const std::string& path,
                  const torch::nn::Module& module,
                  const std::map<std::string, std::string>& metadata) {
  const at::NoGradGuard no_grad;
  check_weights(module, detail::concat("\"", path, "\""));
  const std::vector<Named> all = tensors_of(module);
  std::vector<TensorEntry> entries;
  for (const Named& each : all) {
    entries.push_back({each.name, dtype_of(each.tensor.scalar_type()), each.tensor.sizes().vec()});
  }
  std::map<std::string, std::string> all_metadata = metadata;
  all_metadata.merge(module_notes(module));
  SafetensorsWriter writer(path, std::move(entries), all_metadata);
  for (const Named& each : all) {
    // A copy of one tensor: reading through an operator also gathers what is divided.
    const at::Tensor values = each.tensor.detach().clone(at::MemoryFormat::Contiguous).cpu();
    writer.write({values.const_data_ptr(), values.numel(), dtype_of(values.scalar_type())});
  }
  writer.finish();
}

void load_weights(const std::string& path, torch::nn::Module& module) {
  const SafetensorsFile file(path);
  const std::vector<Named> all = tensors_of(module);
  for (const Named& each : all) {
    const auto& entries = file.entries();
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const TensorEntry& entry) {
      return entry.name == each.name;
    });
    TRIREME_CHECK(
        found != entries.end(), "\"", path, "\": the model's tensor ", each.name, " is missing");
    TRIREME_CHECK(at::IntArrayRef(found->shape) == each.tensor.sizes(),
                  "\"{}\": expected {} of shape {}, found {}",
                  {path, each.name, each.tensor.sizes(), at::IntArrayRef(found->shape)});
  }
  for (const TensorEntry& entry : file.entries()) {
    const bool known = std::any_of(
        all.begin(), all.end(), [&](const Named& each) { return each.name == entry.name; });
    TRIREME_CHECK(known, "\"", path, "\": the model has no tensor ", entry.name);
  }
  const at::NoGradGuard no_grad;
  for (const Named& each : all) {
    const ConstSpan values = file.tensor(each.name);
    copy_values(each.tensor,
                at::from_blob(const_cast<std::byte*>(values.bytes()),
                              each.tensor.sizes(),
                              at::TensorOptions().dtype(scalar_type_of(values.dtype()))));
  }
}

void load_weights(const TensorSource& source, torch::nn::Module& module) {
  const std::vector<Named> all = tensors_of(module);
  const std::vector<StateTensor>& found = source.tensors();
  std::vector<std::size_t> places;
  for (const Named& each : all) {
    const auto place = std::find_if(
        found.begin(), found.end(), [&](const StateTensor& one) { return one.name == each.name; });
    TRIREME_CHECK(place != found.end() && at::IntArrayRef(place->shape) == each.tensor.sizes(),
                  "\"{}\": expected {} of shape {}, found {}",
                  {source.path(),
                   each.name,
                   each.tensor.sizes(),
                   place == found.end() ? "none" : "another shape"});
    places.push_back(static_cast<std::size_t>(place - found.begin()));
  }
  TRIREME_CHECK(found.size() == all.size(),
                "\"{}\": expected the model's {} tensors, found {}",
                {source.path(), all.size(), found.size()});
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const at::Tensor values =
        at::empty(all[i].tensor.sizes(), scalar_type_of(found[places[i]].dtype));
    source.read(places[i], static_cast<std::byte*>(values.mutable_data_ptr()));
    copy_values(all[i].tensor, values);
  }
}

}  // namespace trireme
