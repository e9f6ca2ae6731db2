#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "trireme/comm/communicator.h"
#include "trireme/core/dtype.h"

namespace trireme::detail {

// Of the rows of an embedding: those whose norm is larger are scaled down to it.
struct RowBound {
  double max_norm = 0;
  double norm_type = 2;
  bool operator==(const RowBound&) const = default;
};

// One parameter of the model: one tensor, however many names it is registered under.
struct Parameter {
  std::string name;  // the first one, "blocks.0.linear.weight"
  at::Tensor tensor;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // of its elements in flat memory, which has no holes
  std::int64_t numel = 0;
  Dtype dtype = Dtype::kFloat32;
  bool trainable = true;
  bool sparse = false;              // its gradients come as rows (Embedding with sparse = true)
  bool complex = false;             // its tensor is; here it is what view_as_real() makes of it
  std::optional<RowBound> bound{};  // Embedding with max_norm (bounded_rows.h)

  // Elements of a row.
  std::int64_t width() const { return sizes.empty() || sizes[0] == 0 ? 0 : numel / sizes[0]; }
};

// The shape of a tensor as Parameter has it: a complex one's elements are pairs.
std::vector<std::int64_t> real_sizes(const at::Tensor& tensor);
std::vector<std::int64_t> real_strides(const at::Tensor& tensor);
// A parameter's values in that shape.
at::Tensor real_values(const Parameter& parameter);

// A view of a parameter's shape on flat memory of `dtype`; `owner` keeps the memory alive.
at::Tensor view_of(const Parameter& parameter,
                   void* flat,
                   at::ScalarType type,
                   std::shared_ptr<const void> owner = {},
                   Device device = {});

// Throws ConfigError where parameters overlap, or where another tensor is on their memory: engines
// move parameters.
void check_own_memory(torch::nn::Module& model);

// The model's parameters in the order of registration, tied ones once. Refuses by name what cannot
// be trained in flat memory, and buffers that cannot be copied from rank to rank. A model is on the
// CPU, or where `gpus` says so, on a GPU.
enum class Gpus { kNo, kYes };
std::vector<Parameter> list_parameters(torch::nn::Module& model, Gpus gpus = Gpus::kNo);
// Where all of them are.
Device common_device_of(const std::vector<Parameter>& parameters);

// Throws ConfigError on every rank when the ranks' models differ, naming the first difference.
void check_same_model(const torch::nn::Module& model,
                      const std::vector<Parameter>& parameters,
                      Communicator& ranks);

}  // namespace trireme::detail
