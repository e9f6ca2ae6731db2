#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/rendezvous/link.h"

namespace trireme::detail {

// What launchers that have met say to each other: the first byte of a message.
enum class LauncherWord : std::uint8_t {
  kStart,      // machine 0: everyone is here, this is the job
  kCancelled,  // machine 0: there will be no job
  kHeartbeat,  // I am alive
  kEvent,      // something that ends the job, see job_event.h
  kSilence,    // machine 0: a machine is not heard of
  kHeard,      // machine 0: it is heard of again
  kDone,       // all my ranks have ended
  kFinished,   // machine 0: all ranks of all machines have ended
  // Of an elastic job, see elastic_words.h:
  kStatus,      // how my ranks are
  kLoss,        // some of them have failed
  kLeave,       // I was asked to end
  kEndEpoch,    // machine 0: an epoch ends
  kBeginEpoch,  // machine 0: the next begins
  kHandOver,    // the leader: I leave, another is to lead (see hand_over.cc)
  kDrill        // see drill_news.h; machine 0: what is not to happen again
};

struct LauncherMessage {
  LauncherWord kind = LauncherWord::kHeartbeat;
  std::string body;
};

inline void say(Link& link, LauncherWord kind, const std::string& body = {}) {
  link.send(static_cast<char>(kind) + body);
}

inline std::optional<LauncherMessage> read_word(const std::optional<Message>& message) {
  if (!message || message->bytes.empty()) {
    return std::nullopt;
  }
  return LauncherMessage{static_cast<LauncherWord>(message->bytes[0]), message->bytes.substr(1)};
}

}  // namespace trireme::detail
