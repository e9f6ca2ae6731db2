#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "device/driver.h"
#include "device/host/segment.h"
#include "trireme/core/error.h"

// A device whose work is late, in the memory of the host: what code that uses streams gets wrong
// (reading before an event has passed, freeing memory that work still needs) goes wrong here, on
// machines without a GPU.

namespace trireme::testing {

constexpr Device kLateDevice{DeviceType::kCuda, 0};

class LateStream final : public device::Stream {
 public:
  LateStream() : thread_([this] { work(); }) {}
  // What was issued is still done.
  ~LateStream() override {
    resume();
    push([this] { ended_ = true; });
    thread_.join();
  }
  LateStream(const LateStream&) = delete;
  LateStream& operator=(const LateStream&) = delete;

  // Nothing is done between these two.
  void pause() {
    const std::lock_guard lock(mutex_);
    paused_ = true;
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    paused_ = false;
    changed_.notify_all();
  }

  Device device() const override { return kLateDevice; }
  device::Event record() override {
    auto moment = std::make_shared<Moment>();
    push([moment] { moment->is_past = true; });
    return device::Event(std::move(moment));
  }
  void wait(const device::Event& event) override {
    push([event] { device::host().wait(event); });
  }
  // Memory that is given back when all that was issued before has been done.
  Span scratch(Dtype dtype, std::int64_t numel) override {
    const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(dtype);
    std::shared_ptr<std::byte[]> memory(
        new std::byte[bytes], [this](std::byte* data) { push([data] { delete[] data; }); });
    return {memory.get(), numel, dtype, memory, kLateDevice};
  }
  void clear(const Span& data) override {
    push([data] { device::host().clear(here(data)); });
  }
  void copy(const Span& to,
            const ConstSpan& from,
            device::NotFinite* not_finite = nullptr) override {
    push([=] { device::host().copy(here(to), here(from), not_finite); });
  }
  void check_finite(const ConstSpan& data, device::NotFinite* not_finite) override {
    push([=] { device::host().check_finite(here(data), not_finite); });
  }
  void reduce(const device::SumChain& chain) override {
    const auto kept = std::make_shared<Chain>(chain);
    push([kept] { device::host().reduce(kept->chain); });
  }
  void add_rows(const device::RowSums& rows) override {
    device::RowSums kept = rows;
    kept.sums = here(rows.sums);
    kept.values = here(rows.values);
    push([kept, list = std::vector(rows.rows.begin(), rows.rows.end())]() mutable {
      kept.rows = list;
      device::host().add_rows(kept);
    });
  }
  void largest(const ConstSpan& data, const Scaling& scaling, double* largest) override {
    push([=] { device::host().largest(here(data), scaling, largest); });
  }
  void squares(const ConstSpan& data,
               const SquareQuanta& quanta,
               const Scaling& scaling,
               SquareSum* sum) override {
    push([=] { device::host().squares(here(data), quanta, scaling, sum); });
  }
  void update(const device::UpdateRule& rule, const device::UpdateArrays& arrays) override {
    if (on_rule) {
      on_rule(rule);
    }
    const auto* bytes = static_cast<const std::byte*>(rule.constants);
    push([=, kept = std::vector(bytes, bytes + rule.bytes)] { rule.on_host(kept.data(), arrays); });
  }
  void multiply(const device::Product& product) override {
    push([product] { device::host().multiply(product); });
  }
  void run(const device::BlockKernel& kernel) override {
    if (on_kernel) {
      on_kernel(kernel);
    }
    const auto* bytes = static_cast<const std::byte*>(kernel.arguments);
    push([=, kept = std::vector(bytes, bytes + kernel.bytes)] { kernel.on_host(kept.data()); });
  }

  // Who wants to see what a GPU would have to compile.
  std::function<void(const device::UpdateRule&)> on_rule;
  std::function<void(const device::BlockKernel&)> on_kernel;

 private:
  struct Moment final : device::Event::Moment {
    bool passed() override { return is_past; }
    std::atomic<bool> is_past{false};
  };

  // A chain with lists of its own: the caller's are gone when the work is done.
  struct Chain {
    explicit Chain(const device::SumChain& from)
        : chain(from),
          terms(from.terms.begin(), from.terms.end()),
          outputs(from.outputs.begin(), from.outputs.end()) {
      if (from.accumulator != nullptr) {
        terms.push_back(*from.accumulator);
      }
      absent.reserve(terms.size());
      for (device::Term& term : terms) {
        absent.emplace_back(term.absent, term.absent + term.absent_count);
        term.absent = absent.back().data();
      }
      chain.terms = std::span(terms).first(from.terms.size());
      chain.accumulator = from.accumulator != nullptr ? &terms.back() : nullptr;
      chain.outputs = outputs;
    }
    device::SumChain chain;
    std::vector<device::Term> terms;
    std::vector<std::vector<Range>> absent;
    std::vector<std::byte*> outputs;
  };

  static Span here(const Span& span) {
    return {span.bytes(), span.numel(), span.dtype(), span.owner()};
  }
  static ConstSpan here(const ConstSpan& span) {
    return {span.bytes(), span.numel(), span.dtype(), span.owner()};
  }
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void work() {
    while (!ended_) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !paused_ && !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool paused_ = false;                      // guarded by mutex_
  bool ended_ = false;                       // the thread's own
  std::thread thread_;                       // last: it uses the others
};

// One block after another: those of this rank's part can be written, the others only be read.
class LateMapping final : public device::Mapping {
 public:
  LateMapping(const device::Parts& parts, std::span<const FileDescriptor> offers)
      : bytes_(parts.bytes()), data_(reserved(bytes_)), read_only_(reserved(bytes_)) {
    std::size_t next = 0;
    for (int maker = 0; maker < parts.size(); ++maker) {
      std::size_t at = 0;
      for (const device::Block& block : parts.blocks) {
        if (block.maker == maker) {
          map_at(data_ + at, block.bytes, offers[next], block.written_by(parts.rank));
          map_at(read_only_ + at, block.bytes, offers[next], false);
          ++next;
        }
        at += block.bytes;
      }
    }
  }
  ~LateMapping() override {
    munmap(data_, bytes_);
    munmap(read_only_, bytes_);
  }
  LateMapping(const LateMapping&) = delete;
  LateMapping& operator=(const LateMapping&) = delete;

  std::byte* data() const override { return data_; }
  std::size_t size_bytes() const override { return bytes_; }
  const std::byte* read_only() override { return read_only_; }

 private:
  static std::byte* reserved(std::size_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRIREME_ASSERT(data != MAP_FAILED, "no addresses");
    return static_cast<std::byte*>(data);
  }
  static void map_at(std::byte* at, std::size_t bytes, const FileDescriptor& fd, bool writes) {
    const int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    TRIREME_ASSERT(mmap(at, bytes, access, MAP_SHARED | MAP_FIXED, fd.get(), 0) == at, "no memory");
  }

  std::size_t bytes_;
  std::byte* data_;
  std::byte* read_only_;
};

class LateDriver final : public device::Driver {
 public:
  LateStream& stream() override { return stream_; }
  std::unique_ptr<device::Stream> make_stream() override { return std::make_unique<LateStream>(); }
  std::byte* allocate(std::size_t bytes, device::Reach reach) override {
    ++allocated;
    note_taken();
    return device::driver({}).allocate(bytes, reach);
  }
  void release(std::byte* data, std::size_t bytes, device::Reach reach) noexcept override {
    --allocated;
    device::driver({}).release(data, bytes, reach);
  }
  std::size_t page_bytes() const override { return device::driver({}).page_bytes(); }
  std::string identity() const override { return "late"; }
  // As a GPU's: every rank offers what it makes.
  std::vector<FileDescriptor> offer(const device::Parts& parts) override {
    note_taken();
    std::vector<FileDescriptor> offers;
    for (const device::Block& block : parts.blocks) {
      if (block.maker == parts.rank) {
        offers.push_back(device::create_memory(block.bytes));
      }
    }
    return offers;
  }
  std::shared_ptr<device::Mapping> map(const device::Parts& parts,
                                       std::span<const FileDescriptor> offers) override {
    return std::make_shared<LateMapping>(parts, offers);
  }

  std::atomic<int> allocated{0};

 private:
  LateStream stream_;
};

// The program has the device as long as this lives.
class WithLateDevice {
 public:
  WithLateDevice() : driver_(std::make_shared<LateDriver>()) {
    device::install(kLateDevice, driver_);
  }
  ~WithLateDevice() { device::install(kLateDevice, nullptr); }
  WithLateDevice(const WithLateDevice&) = delete;
  WithLateDevice& operator=(const WithLateDevice&) = delete;

  LateDriver& driver() { return *driver_; }
  LateStream& stream() { return driver_->stream(); }

 private:
  std::shared_ptr<LateDriver> driver_;
};

}  // namespace trireme::testing
