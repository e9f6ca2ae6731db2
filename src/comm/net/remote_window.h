#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/net/network.h"
#include "comm/queue/backend.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/window.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// A window over messages of its own, which a thread sends and answers. Collective over `ranks`, all
// of the network's.
struct WindowOptions {
  Milliseconds timeout{0};
  std::span<const std::byte> memory;  // what this rank exposes
  // Grows by what is sent to other machines.
  std::shared_ptr<std::atomic<std::int64_t>> network_bytes;
  FindFailure find_failure;
};
std::unique_ptr<Window> make_remote_window(Communicator& ranks,
                                           const Network& network,
                                           WindowOptions options);

}  // namespace trireme::detail
