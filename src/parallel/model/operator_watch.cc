#include "parallel/model/operator_watch.h"

#include <mutex>
#include <shared_mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/version.h>

#include "parallel/model/bounded_rows.h"
#include "tensor/span_guard.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Between threads that look at what is behind a storage and those that change it.
std::shared_mutex storage_mutex;

thread_local OperatorObserver* current_observer = nullptr;

struct Context {
  std::shared_ptr<Watched> watched;
};

void delete_context(void* context) {
  delete static_cast<Context*>(context);
}

// What one operator uses, for as long as it runs. All of it is pinned before anything can be
// released for it.
class Pins {
 public:
  Pins() = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() {
    for (Watched* watched : pinned_) {
      watched->unpin();
    }
  }

  void add(Watched* watched) {
    for (const Watched* other : pinned_) {
      if (other == watched) {
        return;
      }
    }
    watched->pin();
    pinned_.push_back(watched);
  }

 private:
  c10::SmallVector<Watched*, 4> pinned_;
};

// Why nobody may write to what is behind a tensor now, and what to do instead.
std::string refusal(const Watched& watched, const std::string& name) {
  switch (watched.holder()) {
    case Watched::Holder::kEngine:
      return concat(
          ", which belongs to an engine: ranks share it or hold copies of it. Write inside a "
          "scope: { auto scope = engine.gathered({\"{}\"}); ... }, on every rank",
          {name});
    case Watched::Holder::kNoEngineYet:
      return ", which build_sharded has divided among the ranks: write to it in the model's "
             "constructor, or inside engine.gathered() once it has an engine";
    case Watched::Holder::kEngineGone:
      break;
  }
  return concat(
      ", whose engine has ended without giving the model back: call engine.unwrap() "
      "before the engine ends",
      watched.always_present() ? ", or give the parameter memory of its own now, with "
                                 "parameter.set_data(parameter.detach().clone())"
                               : "");
}

// For spans: what a collective may do with a tensor.
void check_span(const at::Tensor& tensor, bool write) {
  const Watched* watched = watched_of(tensor);
  if (watched == nullptr || tensor.numel() == 0) {
    return;
  }
  const std::string name = watched->name_at(tensor.storage_offset());
  TRIREME_CHECK(!write,
                "a collective would write to parameter {}{}; or hand over a copy: clone() it first",
                {name, refusal(*watched, name)});
  TRIREME_CHECK(watched->always_present(),
                "a collective cannot read parameter {}, which is divided among the ranks and put "
                "together only while an operator uses it: clone() it first",
                {name});
}

void use(Pins& pins,
         const at::Tensor& tensor,
         const c10::Argument& argument,
         const c10::FunctionSchema& schema) {
  Watched* watched = watched_of(tensor);
  if (watched == nullptr) {
    return;
  }
  const c10::AliasInfo* alias = argument.alias_info();
  if (alias != nullptr && alias->isWrite()) {
    const std::string name = watched->name_at(tensor.storage_offset());
    throw ConfigError(
        concat(schema.name(), " would write to parameter ", name, refusal(*watched, name)));
  }
  pins.add(watched);
}

void before_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  mark(PulsePhase::kOperator);
  Pins pins;
  const c10::FunctionSchema& schema = op.schema();
  if (leaves_out(schema, *stack)) {
    return;
  }
  const Lookup lookup(schema, *stack);
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      use(pins, value.toTensor(), arguments[i], schema);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        use(pins, tensor, arguments[i], schema);
      }
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) {
          use(pins, element.toTensor(), arguments[i], schema);
        }
      }
    }
  }
  const Unwatched beneath;
  if (current_observer != nullptr) {
    current_observer->before(schema, *stack);
  }
  op.callBoxed(stack);
  lookup.finish(*stack);
  if (current_observer != nullptr) {
    current_observer->after(schema, *stack);
  }
}

}  // namespace

ObserverScope::ObserverScope(OperatorObserver& observer) : before_(current_observer), guard_(kKey) {
  current_observer = &observer;
}

ObserverScope::~ObserverScope() {
  current_observer = before_;
}

c10::DataPtr watched_pointer(void* data, std::shared_ptr<Watched> watched, c10::Device device) {
  return {data, new Context{std::move(watched)}, &delete_context, device};
}

at::Tensor watched_tensor(const c10::Storage& storage,
                          at::ScalarType type,
                          at::IntArrayRef sizes,
                          at::IntArrayRef strides,
                          std::int64_t offset) {
  const auto key = storage.device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key).add(kKey), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// The opposite of refuse_access.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
static void allow_access(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}
#else
// LibTorch can set the flag, but not yet clear it. An explicit instantiation may name what is
// private; set_data_ptr, which follows, looks at the flag again.
template <bool c10::StorageImpl::*flag>
struct Cleared {
  friend void allow_access(c10::StorageImpl& storage) { storage.*flag = false; }
};
template struct Cleared<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
void allow_access(c10::StorageImpl& storage);
#endif

void show_memory(c10::StorageImpl& storage,
                 void* data,
                 std::size_t bytes,
                 const std::shared_ptr<Watched>& watched) {
  c10::DataPtr memory = watched_pointer(data, watched, storage.device());
  const std::unique_lock lock(storage_mutex);
  allow_access(storage);
  memory = storage.set_data_ptr(std::move(memory));
  storage.set_nbytes(bytes);
  if (data == nullptr) {
    refuse_access(storage, *watched);
  }
}

void refuse_access(c10::StorageImpl& storage, const Watched& watched) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      concat("the memory of parameter {} and those beside it is divided among the ranks and was "
             "asked for outside of an operator (torch::save, data_ptr): open a scope first, { auto "
             "scope = engine.gathered(); ... }, on every rank",
             {watched.name_at(0)}));
}

bool has_memory(const at::Tensor& tensor) {
  const std::shared_lock lock(storage_mutex);
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

Watched* watched_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kKey) || !tensor.has_storage()) {
    return nullptr;
  }
  const std::shared_lock lock(storage_mutex);
  // Whether it is there or not.
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &delete_context) {
    return nullptr;
  }
  return static_cast<Context*>(data.get_context())->watched.get();
}

}  // namespace trireme::detail

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  trireme::detail::set_span_guard(&trireme::detail::check_span);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&trireme::detail::before_operator>());
}
