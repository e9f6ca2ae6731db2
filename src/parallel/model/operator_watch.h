#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

// Note [seeing every use of a parameter]
// LibTorch has no module hooks in C++. Instead the tensors of parameters carry one more dispatch
// key, DeferredInit, for which this file registers a fallback: every operator that takes such a
// tensor, or any view of it (views inherit the keys), comes through it first, in forward and
// backward, on whatever thread. It makes the memory present for as long as the operator runs, and
// refuses operators that would write to it. Operators without such an argument never come here, so
// they cost nothing. Collectives ask here, too (tensor/span_guard.h). What takes a data_ptr outside
// of both cannot be seen.

namespace trireme::detail {

// Memory behind parameters.
class Watched {
 public:
  virtual ~Watched() = default;
  // The memory must be readable from pin() to unpin(); from several threads.
  virtual void pin() = 0;
  virtual void unpin() = 0;
  // Who answers for it.
  enum class Holder { kNoEngineYet, kEngine, kEngineGone };
  virtual Holder holder() const = 0;
  // The memory is there at any time, not only while it is pinned.
  virtual bool always_present() const { return false; }
  // The parameter that has element `offset` of the memory, for messages.
  virtual std::string name_at(std::int64_t offset) const = 0;
};

// For a storage: memory at `data` (null while it is not present) that belongs to `watched`.
c10::DataPtr watched_pointer(void* data,
                             std::shared_ptr<Watched> watched,
                             c10::Device device = c10::Device(c10::kCPU));

// Gives a storage other memory (none: null and 0), while threads may ask what is behind it.
void show_memory(c10::StorageImpl& storage,
                 void* data,
                 std::size_t bytes,
                 const std::shared_ptr<Watched>& watched);

// Who asks a storage that has no memory now for it, outside of an operator, is told so.
void refuse_access(c10::StorageImpl& storage, const Watched& watched);
// There is memory behind a tensor now.
bool has_memory(const at::Tensor& tensor);

// A tensor on such a storage whose uses are seen.
at::Tensor watched_tensor(const c10::Storage& storage,
                          at::ScalarType type,
                          at::IntArrayRef sizes,
                          at::IntArrayRef strides,
                          std::int64_t offset);

// Operators of this thread are not looked at while it lives: for the engine's own.
class Unwatched {
 public:
  Unwatched() : guard_(c10::DispatchKey::DeferredInit) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

// Sees every operator of the thread that made an ObserverScope for it, whatever its arguments.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  virtual void before(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) = 0;
  virtual void after(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) = 0;
};

class ObserverScope {
 public:
  explicit ObserverScope(OperatorObserver& observer);
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;
  ~ObserverScope();

 private:
  OperatorObserver* before_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// The memory behind a tensor; null where it is ordinary.
Watched* watched_of(const at::Tensor& tensor);

}  // namespace trireme::detail
