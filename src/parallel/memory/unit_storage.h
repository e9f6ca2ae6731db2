#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "parallel/model/operator_watch.h"
#include "parallel/model/unit.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

// The one storage behind the tensors of a unit's parameters.
class UnitStorage {
 public:
  UnitStorage() = default;
  UnitStorage(void* data, std::size_t bytes, std::shared_ptr<Watched> watched, Device device = {})
      : storage_(c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(),
            bytes,
            watched_pointer(data, std::move(watched), torch_device_of(device)),
            /*allocator=*/nullptr,
            /*resizable=*/false)) {}

  const c10::Storage& storage() const { return storage_; }

  // Points a parameter's tensor into it.
  void attach(const Unit& unit, std::size_t index, const Parameter& parameter) const {
    const Unwatched guard;
    const at::ScalarType type = scalar_type_of(unit.dtype);
    std::vector<std::int64_t> sizes = parameter.sizes;
    std::vector<std::int64_t> strides = parameter.strides;
    std::int64_t offset = unit.layout.offset(index);
    if (parameter.complex) {  // pairs, which begin at multiples of 64 bytes
      sizes.pop_back();
      strides.pop_back();
      for (std::int64_t& stride : strides) {
        stride /= 2;
      }
      offset /= 2;
    }
    parameter.tensor.set_data(watched_tensor(
        storage_, parameter.complex ? c10::toComplexType(type) : type, sizes, strides, offset));
  }

 private:
  c10::Storage storage_;
};

// Names the parameters of a unit; outlives the engine, in the tensors' storage.
class UnitNames {
 public:
  UnitNames(const Unit& unit, const std::vector<Parameter>& parameters) : layout_(unit.layout) {
    for (const std::size_t parameter : unit.parameters) {
      names_.push_back(parameters[parameter].name);
    }
  }
  std::string at(std::int64_t offset) const {
    const auto pieces = layout_.pieces({offset, std::min(offset + 1, layout_.total_numel())});
    return pieces.empty() ? names_.front() : names_[pieces.front().parameter];
  }

 private:
  FlatLayout layout_;
  std::vector<std::string> names_;
};

// Memory that is always there; keeps `owner` alive.
class AlwaysPresent final : public Watched {
 public:
  AlwaysPresent(UnitNames names,
                std::shared_ptr<const void> owner,
                std::weak_ptr<const void> engine)
      : names_(std::move(names)), owner_(std::move(owner)), engine_(std::move(engine)) {}
  void pin() override {}
  void unpin() override {}
  Holder holder() const override {
    return engine_.expired() ? Holder::kEngineGone : Holder::kEngine;
  }
  bool always_present() const override { return true; }
  std::string name_at(std::int64_t offset) const override { return names_.at(offset); }

 private:
  UnitNames names_;
  std::shared_ptr<const void> owner_;
  std::weak_ptr<const void> engine_;
};

// A unit in one run, of its own dtype or another, from the parameters' present tensors.
void flatten(const Unit& unit, const std::vector<Parameter>& parameters, const Span& flat);

}  // namespace trireme::detail
