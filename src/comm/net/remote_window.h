#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/net/transport.h"
#include "comm/rendezvous/member.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/window.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// A window over messages of its own, which a thread sends and answers. Collective over `ranks`,
// whose numbers are those of `transport`. `network_bytes` grows by what is sent to other machines.
std::unique_ptr<Window> make_remote_window(
    Communicator& ranks,
    Transport& transport,
    const std::vector<Member>& members,
    Milliseconds timeout,
    const std::byte* data,
    std::size_t bytes,
    std::shared_ptr<std::atomic<std::int64_t>> network_bytes);

// Throws MemoryError on every rank when one of them has a `failure`. Collective.
void agree_on_memory(Communicator& ranks, const std::string& failure);

}  // namespace trireme::detail
