#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/order/operation.h"
#include "comm/queue/backend.h"
#include "comm/queue/steps.h"
#include "comm/shm/endpoint.h"
#include "device/stream.h"

namespace trireme::detail {

// Memory of `peer` that could not be read, and the errno value that says why.
struct FailedRead {
  int peer;
  int error;
};

// The collectives of one machine over shared memory (docs/collectives.md). Issuing an operation
// publishes its slot; running it is a coroutine that the owner advances, one operation after
// another in the order of issue.
class Collectives {
 public:
  explicit Collectives(Endpoint& endpoint)
      : endpoint_(endpoint), phase_(endpoint.first_count()), turn_(endpoint.first_count()) {}

  // Tells the peers about the call and where its input is. The slot must be free.
  void publish(const Call& call);
  // Tells them about the call alone, whose data goes another way.
  void publish_call(const Call& call);

  // The steps from there to the result. `call` outlives them.
  Steps run(const Call& call);

 private:
  Steps barrier(const Call& call);
  Steps exchange(const Call& call);
  Steps reduction(const Call& call);
  // Whether ordinary memory that is the input of `op` should be read through the kernel.
  bool is_worth_the_kernel(const Operation& op) const;
  std::optional<FailedRead> reduce_through_kernel(const Call& call);
  std::optional<FailedRead> fetch_through_kernel(const Call& call) const;
  // Memory of a device (device_collectives.cc).
  Steps run_on_device(const Call& call);
  Steps steps_on_device(const Call& call, device::Event issued);
  void reduce_on_device(const Call& call) const;
  void pull_on_device(const Call& call) const;
  void reduce_from_slots(const Call& call) const;
  void reduce_in_place(const Call& call) const;
  void reduce_chunk(const Call& call,
                    std::size_t first,
                    std::size_t numel,
                    const std::vector<const std::byte*>& inputs,
                    const std::vector<std::byte*>& outputs) const;

  // The slot, with what the call is.
  Slot& describe(const Call& call) const;
  // Peers may look at the slot from now on.
  void show(const Call& call, Slot& mine) const;

  // Passes a synchronisation point; the caller then awaits AllAtPhase(phase_) where it has to.
  void pass_phase();

  Slot& slot(const Call& call, int peer) const;
  // The input of `peer` where it can be read in place; null when it comes through the stage or the
  // kernel.
  const std::byte* readable_input(const Call& call, int peer) const;

  Endpoint& endpoint_;
  std::uint32_t phase_;
  // Halves of the staging area alternate by it; see Note [stage windows].
  std::uint32_t turn_;
  std::unique_ptr<device::Stream> stream_;  // of the device of the last call there
  std::vector<std::byte> pieces_;  // of reduce_through_kernel; kept, as it is the same every time
};

}  // namespace trireme::detail
