#include "comm/rendezvous/membership_socket.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string_view>

#include <poll.h>
#include <sys/socket.h>

#include "comm/rendezvous/descriptor_messages.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {

int membership_socket() {
  const auto fd = env_integer(kEnvMembership, 0, 1 << 20);
  int type = 0;
  socklen_t length = sizeof(type);
  // The program may have closed the descriptor and opened something else in its place.
  return fd && getsockopt(static_cast<int>(*fd), SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
                 type == SOCK_SEQPACKET
             ? static_cast<int>(*fd)
             : -1;
}

namespace {

std::mutex words_mutex;
LauncherWords words_heard;  // guarded by words_mutex

// Takes words, and leaves the first packet that is none: an answer, for whoever waits for it. Under
// the lock, so that no two threads look at one packet and take another.
void take_words(int socket) {
  char text[kLongestPacket];
  for (;;) {
    const ssize_t got = recv(socket, text, sizeof(text), MSG_PEEK | MSG_DONTWAIT);
    words_heard.closed |= got == 0;
    if (got <= 0) {
      return;
    }
    const std::string_view word(text, static_cast<std::size_t>(got));
    if (word == kOverWord) {
      words_heard.over = true;
    } else if (word.starts_with(kLostWord)) {
      words_heard.lost = word.substr(std::min(word.size(), sizeof(kLostWord)));
    } else {
      return;
    }
    recv(socket, text, sizeof(text), MSG_DONTWAIT);
  }
}

}  // namespace

LauncherWords words_of_launcher(int socket) {
  const std::lock_guard lock(words_mutex);
  if (socket >= 0) {
    take_words(socket);
  }
  return words_heard;
}

void forget_words_of_launcher() {
  const std::lock_guard lock(words_mutex);
  words_heard = {};
}

std::optional<Packet> receive_answer(int socket) {
  for (;;) {
    pollfd entry{socket, POLLIN, 0};
    poll(&entry, 1, -1);
    const std::lock_guard lock(words_mutex);
    take_words(socket);
    auto packet = receive_packet(socket, MSG_DONTWAIT);
    if (packet || errno == 0 || (errno != EAGAIN && errno != EINTR)) {
      return packet;
    }
  }
}

void send_with_descriptors(int socket,
                           const std::string& text,
                           const std::vector<int>& fds,
                           int flags) {
  if (send_message(socket, text, fds, flags) < 0) {
    throw Error(concat("the other end of a membership socket is gone: ", errno_text(errno)));
  }
}

std::optional<Packet> receive_packet(int socket, int flags) {
  Packet packet{std::string(kLongestPacket, '\0'), {}};
  const ssize_t got = receive_message(socket, packet.text, packet.descriptors, flags);
  if (got <= 0) {
    errno = got == 0 ? 0 : errno;
    return std::nullopt;
  }
  packet.text.resize(static_cast<std::size_t>(got));
  return packet;
}

}  // namespace trireme::detail
