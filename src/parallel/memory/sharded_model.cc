#include "trireme/parallel/sharded_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>

#include "device/buffer.h"
#include "parallel/model/operator_watch.h"
#include "parallel/model/parameter_table.h"
#include "trireme/comm/shared_buffer.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/memory_limit.h"

namespace trireme::detail {
namespace {

// Smaller tensors stay whole: dividing them would save less than it costs.
constexpr std::size_t kLeastBytes = 64 << 10;

// Gives large tensors pages of their own, which go back to the kernel when they are freed. malloc
// would keep them, and small allocations would soon sit between them: a model built in parts would
// leave behind as much memory as if it had been built whole.
class PageAllocator final : public c10::Allocator {
 public:
  explicit PageAllocator(c10::Allocator& small) : small_(&small) {}
  void take_small_ones_from(c10::Allocator& small) {
    small_ = &small;
    blocks().other = small.raw_deleter();
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLeastBytes) {
      return small_.load()->allocate(bytes);
    }
    MemoryLimit::count(bytes);
    try {
      device::Buffer buffer(bytes);
      std::byte* const memory = buffer.data();
      const std::lock_guard lock(blocks().mutex);
      blocks().of.emplace(memory, std::move(buffer));
      return {memory, memory, &free, c10::Device(c10::kCPU)};
    } catch (...) {
      MemoryLimit::discount(bytes);
      throw;
    }
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Blocks {
    std::mutex mutex;
    std::unordered_map<void*, device::Buffer> of;
    std::atomic<c10::DeleterFnPtr> other{nullptr};
  };
  static Blocks& blocks() {
    static auto* const all = new Blocks;
    return *all;
  }
  // oneDNN gives back by the pointer alone what it has had from here, or from before.
  static void free(void* memory) {
    Blocks& all = blocks();
    std::unique_lock lock(all.mutex);
    if (const auto block = all.of.extract(memory)) {
      lock.unlock();
      MemoryLimit::discount(block.mapped().size_bytes());
    } else if (memory != nullptr) {
      lock.unlock();
      all.other.load()(memory);
    }
  }
  std::atomic<c10::Allocator*> small_;
};

// LibTorch's allocator while it lives, also where there is a limit.
class PageAllocatorScope {
 public:
  PageAllocatorScope() : before_(c10::GetCPUAllocator()) {
    // Never destroyed: tensors remember the allocator that they came from.
    static auto* pages = new PageAllocator(*before_);
    if (before_ != pages) {  // in another scope it is LibTorch's already
      pages->take_small_ones_from(*before_);
    }
    c10::SetCPUAllocator(pages, MemoryLimit::kPriority);
  }
  PageAllocatorScope(const PageAllocatorScope&) = delete;
  PageAllocatorScope& operator=(const PageAllocatorScope&) = delete;
  ~PageAllocatorScope() { c10::SetCPUAllocator(before_, MemoryLimit::kPriority); }

 private:
  c10::Allocator* before_;
};

// A tensor in parts, one on each rank, of one run of shared memory.
SharedBuffer divide(const std::byte* data, std::size_t bytes, Communicator& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const std::size_t page = SharedBuffer::page_bytes();
  const std::size_t part = ((bytes + size - 1) / size + page - 1) / page * page;
  const SharedBuffer run = ranks.allocate(part);
  const std::size_t begin = std::min(bytes, static_cast<std::size_t>(ranks.rank()) * part);
  std::memcpy(run.whole() + begin, data + begin, std::min(part, bytes - begin));
  ranks.barrier().wait();
  return run;
}

// A parameter of a model that is built but has no engine yet: whole only while it is read.
class Divided final : public Watched {
 public:
  Divided(SharedBuffer run, std::size_t bytes, std::string name)
      : run_(std::move(run)), bytes_(bytes), name_(std::move(name)) {}

  void belongs_to(c10::StorageImpl* storage, std::weak_ptr<Watched> self) {
    storage_ = storage;
    self_ = std::move(self);
  }

  void pin() override {
    const std::lock_guard lock(mutex_);
    if (pins_++ == 0) {
      memory_ = device::Buffer(bytes_);
      std::memcpy(memory_.data(), run_.whole(), bytes_);
      show(memory_.data(), bytes_);
    }
  }
  void unpin() override {
    const std::lock_guard lock(mutex_);
    if (--pins_ == 0) {
      show(nullptr, 0);
      memory_ = device::Buffer();
    }
  }
  Holder holder() const override { return Holder::kNoEngineYet; }
  std::string name_at(std::int64_t) const override { return name_; }

 private:
  void show(void* data, std::size_t bytes) { show_memory(*storage_, data, bytes, self_.lock()); }

  SharedBuffer run_;
  std::size_t bytes_;
  std::string name_;
  std::mutex mutex_;
  int pins_ = 0;
  device::Buffer memory_;
  c10::StorageImpl* storage_ = nullptr;
  std::weak_ptr<Watched> self_;
};

}  // namespace

class Construction::Impl final : public OperatorObserver {
 public:
  // Divided among the ranks of a machine: until there is an engine, every machine has all of it.
  explicit Impl(Communicator& ranks) : ranks_(ranks.machine()), observed_(*this) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // After a constructor that failed, what somebody has kept of it is whole again. The others may be
  // elsewhere by now: nobody is waited for.
  ~Impl() override {
    for (Entry& entry : entries_) {
      try {
        restore(entry);
      } catch (const std::exception& error) {
        log(LogLevel::kWarning, concat("a tensor of a model that failed is lost: ", error.what()));
      }
    }
  }

  void before(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) override {
    const std::size_t count = schema.arguments().size();
    given_.clear();
    bool in_use = false;
    for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
      const c10::IValue& value = stack[i];
      if (value.isTensor()) {
        in_use |= see(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
          in_use |= see(tensor);
        }
      } else if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) {
          in_use |= element.isTensor() && see(element.toTensor());
        }
      } else if (value.isStorage()) {
        given_.push_back(value.toStorage().unsafeGetStorageImpl());
      }
    }
    forget_dead();
    if (!in_use) {
      // Perhaps a new tensor: what is there makes room for it.
      for (Entry& entry : entries_) {
        close(entry);
      }
    }
  }

  void after(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) override {
    const std::size_t count = schema.returns().size();
    for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
      if (stack[i].isTensor()) {
        note(stack[i].toTensor());
      }
    }
  }

  void finish(torch::nn::Module& model) {
    check_own_memory(model);
    forget_dead();
    for (const auto& item : model.named_parameters(true)) {
      at::Tensor tensor = item.value();
      Entry* entry = tensor.defined() ? find(tensor) : nullptr;
      if (entry == nullptr) {
        continue;
      }
      close(*entry);
      auto divided = std::make_shared<Divided>(entry->run, entry->bytes, item.key());
      const c10::Storage storage(
          c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                0,
                                                watched_pointer(nullptr, divided),
                                                /*allocator=*/nullptr,
                                                /*resizable=*/false));
      divided->belongs_to(storage.unsafeGetStorageImpl(), divided);
      const Unwatched guard;
      tensor.set_data(watched_tensor(storage,
                                     tensor.scalar_type(),
                                     tensor.sizes(),
                                     tensor.strides(),
                                     tensor.storage_offset()));
    }
    forget_dead();
    for (Entry& entry : entries_) {
      open(entry);  // buffers, and whatever else the model keeps
    }
    entries_.clear();
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const c10::StorageImpl* address;
    std::size_t bytes;
    SharedBuffer run;
    bool closed = false;
  };

  Entry* find(const at::Tensor& tensor) {
    if (!tensor.has_storage()) {
      return nullptr;
    }
    const auto* address = tensor.storage().unsafeGetStorageImpl();
    const auto entry = std::ranges::find(entries_, address, &Entry::address);
    return entry == entries_.end() ? nullptr : &*entry;
  }

  // An argument of an operator. True where it is one of the tensors that are divided.
  bool see(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) {
      return false;
    }
    given_.push_back(tensor.storage().unsafeGetStorageImpl());
    Entry* entry = find(tensor);
    if (entry != nullptr) {
      open(*entry);
    }
    return entry != nullptr;
  }

  // A result of an operator. It is to be divided where its memory is new: what the operator was
  // given, or takes from elsewhere than the allocator (a file), may be the caller's, with values of
  // this rank alone.
  void note(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu() ||
        tensor.layout() != at::kStrided || tensor.storage().nbytes() < kLeastBytes ||
        tensor.storage().allocator() != c10::GetCPUAllocator() || find(tensor) != nullptr) {
      return;
    }
    const auto& storage = tensor.storage();
    if (std::find(given_.begin(), given_.end(), storage.unsafeGetStorageImpl()) != given_.end()) {
      return;
    }
    entries_.push_back(
        {storage.getWeakStorageImpl(), storage.unsafeGetStorageImpl(), storage.nbytes(), {}});
  }

  void forget_dead() {
    entries_.erase(std::remove_if(entries_.begin(),
                                  entries_.end(),
                                  [](const Entry& entry) { return entry.storage.expired(); }),
                   entries_.end());
  }

  void close(Entry& entry) {
    const auto storage = entry.storage.lock();
    if (entry.closed || !storage) {
      return;
    }
    entry.run = divide(static_cast<const std::byte*>(storage->data()), entry.bytes, ranks_);
    (void)storage->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    storage->set_nbytes(0);
    entry.closed = true;
  }

  void open(Entry& entry) {
    if (restore(entry)) {
      ranks_.barrier().wait();  // all have read it
      entry.run = {};
    }
  }

  // Whole again, if it was divided and is still there.
  static bool restore(Entry& entry) {
    const auto storage = entry.storage.lock();
    if (!entry.closed || !storage) {
      return false;
    }
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(entry.bytes);
    std::memcpy(memory.get(), entry.run.whole(), entry.bytes);
    (void)storage->set_data_ptr(std::move(memory));
    storage->set_nbytes(entry.bytes);
    entry.closed = false;
    return true;
  }

  Communicator& ranks_;
  std::vector<Entry> entries_;
  std::vector<const c10::StorageImpl*> given_;  // to the operator that runs
  PageAllocatorScope pages_;
  ObserverScope observed_;
};

Construction::Construction(Communicator& ranks) : impl_(std::make_unique<Impl>(ranks)) {}
Construction::~Construction() = default;

void Construction::finish(torch::nn::Module& model) {
  impl_->finish(model);
  impl_.reset();
}

}  // namespace trireme::detail
