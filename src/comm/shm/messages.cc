#include "comm/shm/messages.h"

#include <algorithm>
#include <cstring>

#include "comm/order/copy_bytes.h"
#include "comm/order/matching.h"

namespace trireme::detail {
namespace {

// Waits for something that only `peer` can bring about.
template <class Test>
class UntilPeer final : public Condition {
 public:
  UntilPeer(int peer, Test test) : peer_(peer), test_(std::move(test)) {}
  bool ready() override { return test_(); }
  std::vector<int> missing() override { return {peer_}; }

 private:
  int peer_;
  Test test_;
};

}  // namespace

void Messages::push(int to, const Fragment& fragment) {
  Mailbox& box = endpoint_.control().mailbox(endpoint_.rank(), to);
  const std::uint32_t number = box.pushed.load(std::memory_order_relaxed);
  box.fragments[number % kMailboxEntries] = fragment;
  box.pushed.store(number + 1, std::memory_order_seq_cst);
  endpoint_.ring(to);
}

Steps Messages::send(const Call& call) {
  const Operation& op = call.operation;
  const Control& control = endpoint_.control();
  const int me = endpoint_.rank();
  Mailbox& box = control.mailbox(me, op.peer);
  const auto has_room = [&] {
    return box.pushed.load(std::memory_order_relaxed) - box.taken.load(std::memory_order_seq_cst) <
           kMailboxEntries;
  };
  Fragment fragment{};
  fragment.dtype = op.dtype;
  fragment.tag = op.tag;
  fragment.numel = op.input.numel();
  const std::size_t bytes = op.input.size_bytes();

  if (bytes > kOutboxSlotBytes &&
      endpoint_.locate(op.input.bytes(), bytes, &fragment.segment, &fragment.offset)) {
    fragment.source = Source::kShared;
    fragment.bytes = bytes;
    co_await UntilPeer(op.peer, has_room);
    push(op.peer, fragment);
    const std::uint32_t number = box.pushed.load(std::memory_order_relaxed);
    co_await UntilPeer(op.peer, [&box, number] {
      return Endpoint::reached(box.taken.load(std::memory_order_seq_cst), number);
    });
    co_return;
  }

  fragment.source = Source::kStaged;
  std::size_t sent = 0;
  do {
    std::uint32_t free_slot = 0;
    co_await UntilPeer(op.peer, [&] {
      const auto is_free = [&](std::uint32_t slot) {
        free_slot = slot;
        return control.outbox_flag(me, slot).used.load(std::memory_order_seq_cst) == 0;
      };
      for (std::uint32_t slot = 0; slot < kOutboxSlots; ++slot) {
        if (is_free(slot)) {
          return has_room();
        }
      }
      // Others have taken them all. Where pieces of this pair are among them, one comes back when
      // the peer takes it, and the small slot is not worth it.
      const bool has_none =
          box.pushed.load(std::memory_order_relaxed) == box.taken.load(std::memory_order_seq_cst);
      return has_none && is_free(kOutboxSlots + static_cast<std::uint32_t>(op.peer));
    });
    fragment.bytes = std::min(Control::outbox_bytes(free_slot), bytes - sent);
    if (fragment.bytes > 0) {
      control.outbox_flag(me, free_slot).used.store(1, std::memory_order_relaxed);
      std::memcpy(control.outbox(me, free_slot), op.input.bytes() + sent, fragment.bytes);
    }
    fragment.outbox_slot = free_slot;
    push(op.peer, fragment);
    sent += fragment.bytes;
  } while (sent < bytes);
}

Steps Messages::recv(const Call& call) {
  const Operation& op = call.operation;
  const Control& control = endpoint_.control();
  Mailbox& box = control.mailbox(op.peer, endpoint_.rank());
  std::size_t received = 0;
  do {
    const std::uint32_t number = box.taken.load(std::memory_order_relaxed);
    co_await UntilPeer(
        op.peer, [&box, number] { return box.pushed.load(std::memory_order_seq_cst) != number; });
    const Fragment& fragment = box.fragments[number % kMailboxEntries];
    check_message(
        endpoint_.rank(), op, {fragment.dtype, fragment.numel, fragment.tag}, [&](int rank) {
          return endpoint_.name(rank);
        });
    if (fragment.source == Source::kShared) {
      copy_bytes(op.output.bytes(),
                 endpoint_.resolve(op.peer, fragment.segment, fragment.offset),
                 fragment.bytes);
    } else if (fragment.bytes > 0) {
      std::memcpy(op.output.bytes() + received,
                  control.outbox(op.peer, fragment.outbox_slot),
                  fragment.bytes);
      control.outbox_flag(op.peer, fragment.outbox_slot).used.store(0, std::memory_order_seq_cst);
    }
    received += fragment.bytes;
    box.taken.store(number + 1, std::memory_order_seq_cst);
    endpoint_.ring(op.peer);
  } while (received < op.output.size_bytes());
}

}  // namespace trireme::detail
