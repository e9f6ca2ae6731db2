#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/net/transport.h"
#include "comm/rendezvous/member.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/window.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// What has ended the world of a rank that cannot be read any more, where that is known.
using FindFailure = std::function<std::optional<CommError>()>;
// News of a loss is there at once, but for goodbyes that may be on their way.
inline constexpr Milliseconds kTimeToFindFailures{1000};

// A window over messages of its own, which a thread sends and answers. Collective over `ranks`,
// whose numbers are those of `transport`. `network_bytes` grows by what is sent to other machines.
std::unique_ptr<Window> make_remote_window(Communicator& ranks,
                                           Transport& transport,
                                           const std::vector<Member>& members,
                                           Milliseconds timeout,
                                           const std::byte* data,
                                           std::size_t bytes,
                                           std::shared_ptr<std::atomic<std::int64_t>> network_bytes,
                                           FindFailure find_failure);

// Throws MemoryError on every rank when one of them has a `failure`. Collective.
void agree_on_memory(Communicator& ranks, const std::string& failure);

}  // namespace trireme::detail
