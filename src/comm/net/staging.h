#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "comm/queue/backend.h"
#include "comm/queue/steps.h"
#include "device/buffer.h"
#include "device/stream.h"

namespace trireme::detail {

// Note [staging]
// Ranks that reach each other by messages, and have their data on a device, communicate copies of
// it in memory of the host that the device sees. What was issued on the device's default stream
// before the call comes first; the copies are on a stream of their own, and nobody waits for them
// but the operation. It is otherwise one on the host: with its order, so with its bits.
class Staging {
 public:
  // Whether there is data of it on a device.
  static bool is_for(const Operation& op);

  // `rank`: this one, which is named where its device does not come to an end. `start`: the steps
  // of a call on memory of the host, which outlives them.
  using Start = std::function<Steps(const Call&)>;
  Steps run(int rank, const Call& call, Start start);

 private:
  Steps run_after(int rank, const Call& call, device::Event issued, Start start);
  // Memory that nobody uses, kept from call to call.
  Span take(Device device, Dtype dtype, std::int64_t numel);

  std::unique_ptr<device::Stream> stream_;
  std::vector<std::shared_ptr<device::Buffer>> kept_;
};

}  // namespace trireme::detail
