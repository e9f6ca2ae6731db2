#include "comm/shm/messages.h"

#include <algorithm>
#include <cstring>

#include "comm/shm/collectives.h"
#include "trireme/core/error.h"

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

std::string describe_letter(const Letter& letter) {
  return concat(dtype_name(letter.dtype), " x ", letter.numel, ", tag ", letter.tag);
}

}  // namespace

void Messages::push(int to, const Letter& letter) {
  Mailbox& box = station_.control().mailbox(station_.rank(), to);
  const std::uint32_t number = box.pushed.load(std::memory_order_relaxed);
  box.letters[number % kMailboxEntries] = letter;
  box.pushed.store(number + 1, std::memory_order_seq_cst);
  station_.ring(to);
}

Steps Messages::send(const Call& call) {
  const Operation& op = call.operation;
  const Control& control = station_.control();
  const int me = station_.rank();
  Mailbox& box = control.mailbox(me, op.peer);
  const auto has_room = [&] {
    return box.pushed.load(std::memory_order_relaxed) - box.taken.load(std::memory_order_seq_cst) <
           kMailboxEntries;
  };
  Letter letter{};
  letter.dtype = op.dtype;
  letter.tag = op.tag;
  letter.numel = op.input.numel();
  const std::size_t bytes = op.input.size_bytes();

  if (bytes > kOutboxSlotBytes &&
      station_.locate(op.input.bytes(), bytes, &letter.segment, &letter.offset)) {
    letter.source = Source::kShared;
    letter.bytes = bytes;
    co_await UntilPeer(op.peer, has_room);
    push(op.peer, letter);
    const std::uint32_t number = box.pushed.load(std::memory_order_relaxed);
    co_await UntilPeer(op.peer, [&box, number] {
      return Station::reached(box.taken.load(std::memory_order_seq_cst), number);
    });
    co_return;
  }

  letter.source = Source::kStaged;
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
    letter.bytes = std::min(Control::outbox_bytes(free_slot), bytes - sent);
    if (letter.bytes > 0) {
      control.outbox_flag(me, free_slot).used.store(1, std::memory_order_relaxed);
      std::memcpy(control.outbox(me, free_slot), op.input.bytes() + sent, letter.bytes);
    }
    letter.outbox_slot = free_slot;
    push(op.peer, letter);
    sent += letter.bytes;
  } while (sent < bytes);
}

Steps Messages::recv(const Call& call) {
  const Operation& op = call.operation;
  const Control& control = station_.control();
  Mailbox& box = control.mailbox(op.peer, station_.rank());
  std::size_t received = 0;
  do {
    const std::uint32_t number = box.taken.load(std::memory_order_relaxed);
    co_await UntilPeer(
        op.peer, [&box, number] { return box.pushed.load(std::memory_order_seq_cst) != number; });
    const Letter& letter = box.letters[number % kMailboxEntries];
    if (letter.dtype != op.dtype || letter.numel != op.output.numel() || letter.tag != op.tag) {
      throw CommError(
          CommError::Reason::kMismatch,
          op.peer,
          concat("rank ",
                 station_.rank(),
                 " called recv(",
                 dtype_name(op.dtype),
                 " x ",
                 op.output.numel(),
                 ", tag ",
                 op.tag,
                 ") from ",
                 station_.name(op.peer),
                 ", whose next message is ",
                 describe_letter(letter),
                 ": messages of a pair must be received in the order they were sent, with "
                 "the same dtype, length and tag"));
    }
    if (letter.source == Source::kShared) {
      copy_bytes(op.output.bytes(),
                 station_.resolve(op.peer, letter.segment, letter.offset),
                 letter.bytes);
    } else if (letter.bytes > 0) {
      std::memcpy(
          op.output.bytes() + received, control.outbox(op.peer, letter.outbox_slot), letter.bytes);
      control.outbox_flag(op.peer, letter.outbox_slot).used.store(0, std::memory_order_seq_cst);
    }
    received += letter.bytes;
    box.taken.store(number + 1, std::memory_order_seq_cst);
    station_.ring(op.peer);
  } while (received < op.output.size_bytes());
}

}  // namespace trireme::detail
