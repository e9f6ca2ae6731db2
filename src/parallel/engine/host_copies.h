#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "parallel/memory/part_context.h"
#include "parallel/memory/state_window.h"

namespace trireme::detail {

// Between a GPU, which has gradients and parameters, and the host, which updates them
// (EngineOptions::offload): the gradients of a window come while the one before it is updated, and
// its parameters go back while the next one is, on streams of their own, through memory that the
// GPU reaches.
class HostCopies {
 public:
  HostCopies(const PartContext& context, const std::vector<StateWindow>& windows);

  // An update begins: what follows is after everything that was issued on the default stream.
  void begin();

  // Gradients on their way into a window, whose turn it is so many windows after the first; `at`
  // counts elements from its beginning.
  struct Fetch {
    ConstSpan from;
    std::int64_t at = 0;
  };
  void fetch(std::size_t turn, const std::vector<Fetch>& gradients);
  // Until they are there, and the memory for the window's parameters is free again.
  void wait(std::size_t turn);
  ConstSpan gradient(std::size_t turn, std::int64_t at, std::int64_t numel, Dtype dtype) const;
  // Where the host leaves parameters of a window.
  Span parameters(std::size_t turn, std::int64_t at, std::int64_t numel, Dtype dtype) const;

  struct Send {
    Span to;
    std::int64_t at = 0;
  };
  void send(std::size_t turn, const std::vector<Send>& parameters);
  // What comes next on the default stream is after everything that was sent.
  void publish();

  std::int64_t fetched_bytes() const { return fetched_bytes_; }
  std::int64_t sent_bytes() const { return sent_bytes_; }
  double wait_seconds() const { return wait_seconds_; }

 private:
  static constexpr std::size_t kSlots = 3;
  struct Slot {
    device::Buffer gradients;
    device::Buffer parameters;
    device::Event fetched;
    device::Event sent;
  };

  const Slot& slot_of(std::size_t turn) const { return slots_[turn % kSlots]; }

  Device gpu_;
  MemoryLedger::Charge charge_;
  std::array<Slot, kSlots> slots_;
  std::unique_ptr<device::Stream> down_;  // after the memory: they end before it does
  std::unique_ptr<device::Stream> up_;
  std::int64_t fetched_bytes_ = 0;
  std::int64_t sent_bytes_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace trireme::detail
