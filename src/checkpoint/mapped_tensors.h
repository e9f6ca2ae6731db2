#pragma once

#include <functional>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/tensor_source.h"

namespace trireme::detail {

// The tensors of a safetensors file, where it is mapped.
class MappedTensors final : public TensorSource {
 public:
  // See SafetensorsFile.
  explicit MappedTensors(const std::string& path,
                         const std::function<bool(const std::string& name)>& skipped = {});

  void read(std::size_t tensor, std::byte* out) const override;
  const std::byte* memory(std::size_t tensor) const override { return places_.at(tensor); }

 private:
  SafetensorsFile file_;
  std::vector<const std::byte*> places_;
};

}  // namespace trireme::detail
