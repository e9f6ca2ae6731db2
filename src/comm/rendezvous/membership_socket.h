#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/descriptor_messages.h"

// The socket between a rank of an elastic job and its launcher (launch_protocol.h).

namespace trireme::detail {

inline constexpr std::size_t kLongestPacket = 256;

struct Packet {
  std::string text;
  std::vector<FileDescriptor> descriptors;
};

// A rank's end; -1 where there is none.
int membership_socket();

// What the launcher has said by itself of the epoch at hand.
struct LauncherWords {
  bool over = false;                // it ends, at once or after the step at hand
  std::optional<std::string> lost;  // it has: a rank is lost, and why
  bool closed = false;              // there will be no other
};
// Takes note of what has come. Never waits; any thread may ask.
LauncherWords words_of_launcher(int socket);
// Another epoch begins: what was said is no longer true.
void forget_words_of_launcher();
// Waits for an answer, and takes note of the words before it. Nothing: the other end is gone.
std::optional<Packet> receive_answer(int socket);

// Throws Error where the other end is gone.
void send_with_descriptors(int socket,
                           const std::string& text,
                           const std::vector<int>& fds,
                           int flags = 0);
// Nothing: the other end is gone (errno is 0), or there is nothing yet (MSG_DONTWAIT).
std::optional<Packet> receive_packet(int socket, int flags);

}  // namespace trireme::detail
