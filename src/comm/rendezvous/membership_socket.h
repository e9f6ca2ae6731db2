#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/file_descriptor.h"

// The socket between a rank of an elastic job and its launcher (launch_protocol.h).

namespace trireme::detail {

// The kernel passes 253 at a time.
inline constexpr std::size_t kMostDescriptors = 250;
inline constexpr std::size_t kLongestPacket = 256;

struct Packet {
  std::string text;
  std::vector<FileDescriptor> descriptors;
};

// A rank's end; -1 where there is none.
int membership_socket();

// Whether the launcher has said that the epoch at hand is over. It says nothing else by itself.
// `or_closed`: or has closed the socket, so that there will be no other.
bool epoch_is_over(int socket, bool or_closed);

// Throws Error where the other end is gone.
void send_with_descriptors(int socket, const std::string& text, const std::vector<int>& fds);
// Nothing: the other end is gone (errno is 0), or there is nothing yet (MSG_DONTWAIT).
std::optional<Packet> receive_packet(int socket, int flags);

}  // namespace trireme::detail
