#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/order/operation.h"
#include "comm/queue/steps.h"
#include "trireme/comm/shared_buffer.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme {
class Communicator;
class Window;
}  // namespace trireme

namespace trireme::detail {

// What has ended a communicator, where somebody has lost one of its ranks in another way.
using FindFailure = std::function<std::optional<CommError>()>;

// One operation in flight on this rank.
struct Call {
  Operation operation;
  std::uint64_t number = 0;  // of collectives, from 1; 0 for send and recv

  bool is_collective() const {
    return operation.kind != OpKind::kSend && operation.kind != OpKind::kRecv;
  }
};

// "#17 all_reduce(sum, float32 x 1024)".
std::string describe(const Call& call);

// A rank that is gone, in the words that all backends have for it; `name` is the rank's.
CommError lost_rank(CommError::Reason reason, int rank, const std::string& name);

// Throws ConfigError where no backend carries this operation out on memory of a device.
void check_works_on_devices(const Operation& operation);

// What Communicator::allocate asks for, or allocate_run.
struct MemoryRequest {
  std::size_t bytes = 0;            // for each rank, in pages of its own,
  std::vector<std::int64_t> run{};  // or, unless it is empty, by rank, with nothing between them
  Device device{};
};

// What the operations of a communicator run on: shared memory, messages, or both. Whoever adds a
// backend writes `start`, and how ranks wait for, lose and tell each other; the order of
// operations, waiting, deadlines and records are the queue's (operation_queue.h), which calls all
// of this under its lock. Ranks in errors are the communicator's own numbers.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The number in the world, by which launchers and people know a rank.
  virtual int world_rank(int rank) const { return rank; }
  // "rank 2 (pid 4711 on machine 1, node-b)", with its number in the world.
  virtual std::string name(int rank) const = 0;
  virtual int sum_group() const { return 1; }
  virtual bool one_machine() const { return true; }
  // Of messages that this rank has sent to other machines. From any thread.
  virtual std::int64_t network_bytes() const { return 0; }

  // --- operations

  // Throws ConfigError where the call's memory is nothing that it can work on: that of a device.
  virtual void check_memory(const Operation& operation) const = 0;

  // Tells the peers of a call, as far as that can be done at once, and returns the steps from there
  // to the result. `call` outlives them.
  virtual Steps start(const Call& call) = 0;
  // The last of its steps is done.
  virtual void completed(const Call& /*call*/) {}
  // The ranks that have to complete an earlier collective before number `number` can start.
  virtual std::vector<int> without_room(std::uint64_t /*number*/) const { return {}; }
  // Moves data; true if something moved.
  virtual bool pump() { return false; }

  // Of a SharedBuffer, in two parts, without the lock: before all ranks have agreed about its size,
  // and after. The second throws MemoryError or CommError. Only backends of one machine are asked
  // for one run.
  virtual void announce_memory(const MemoryRequest& /*request*/) {}
  virtual std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest& request) = 0;
  // Communicator::expose of `ranks`, whose backend this is. Without the lock.
  virtual std::unique_ptr<Window> expose(Communicator& ranks,
                                         std::span<const std::byte> memory,
                                         const FindFailure& find_failure);

  // --- waiting

  // Nothing can be done: a thread rests, in three steps, so that nothing that comes meanwhile is
  // missed. It announces itself, looks for the last time, and rests for at most `most`, during
  // which what `announce_rest` has returned may change. `for_room`: it waits until there is room
  // for one more collective.
  virtual std::uint32_t announce_rest(bool /*for_room*/) { return 0; }
  virtual void rest(std::uint32_t announced, Milliseconds most) = 0;
  virtual void end_rest(bool /*for_room*/) {}
  // Whether other threads may be in here during a rest; else `wake` ends it for them.
  virtual bool rests_unlocked() const { return false; }
  // Ends the rest of another thread. From any thread, without the lock.
  virtual void wake() {}

  // --- failing

  // Another rank has told of a failure: cheap, and what it told.
  virtual bool was_told() const = 0;
  virtual CommError told() const = 0;
  // Why the wait for `missing` is in vain, where it is.
  virtual std::optional<CommError> loss(const std::vector<int>& missing) = 0;
  // Patience beyond the deadline: a rank of this machine may itself wait for another machine, and
  // is about to say so.
  virtual Milliseconds grace(const std::vector<int>& /*missing*/) { return Milliseconds(0); }
  // For those who wait for this rank, and would blame it: whom it waits for itself, and still does;
  // -1: nobody.
  virtual void say_waits_for(int /*rank*/) {}
  // Whom those in `late` wait for in turn, as far as they say so, else they themselves.
  virtual std::vector<int> behind(const std::vector<int>& late) { return late; }
  // What the ranks did last, as far as this one knows; for messages.
  virtual std::string last_operations() const = 0;
  // The first failure is everyone's: this one, unless another rank was first. False then, and
  // `told` says what it was.
  virtual bool settle(const CommError& /*failure*/) { return !was_told(); }
  // This rank has failed: tells the others, who would wait for it.
  virtual void spread(const CommError& failure) = 0;

  // --- the beginning and the end

  // It has a user from now on, who will close it. One that was never opened is not closed.
  virtual void open() {}
  // Nothing is issued any more. `clean`: nothing is in flight either, and nothing had failed.
  virtual void close(bool clean) = 0;
  // Instead of `close` in a copy of the process that fork made, which does not speak for the rank.
  virtual void close_in_child() {}
  // To be closed when the process ends through exit(), which is leaving in good order.
  virtual bool closes_at_exit() const { return false; }
};

}  // namespace trireme::detail
