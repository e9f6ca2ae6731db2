#pragma once

#include <memory>
#include <string>

#include "comm/transport/transport.h"

namespace trireme::detail {

// Note [sealed messages]: what ranks tell each other over a network is authenticated. Announcements
// of operations with the inputs in them, headers of messages and control messages carry a tag of 16
// bytes (ChaCha20-Poly1305) under a key of the two ranks for one direction, and the
// number of the message in its stream. So one that is altered, forged, replayed, moved to another
// stream or left out is found, by the rank that receives it, which takes the other for lost and
// names it. Contributions and results, which go in large pieces straight from and to the user's
// memory, are sealed only where everything is encrypted or checked: that takes a copy of each.
//
// The keys are made from one that rank 0 has drawn for the world and sent to each rank under the
// keys of their handshake.
struct SealOptions {
  std::string key;
  bool encrypt = false;     // everything, and not only authenticate what steers
  bool checks_all = false;  // authenticate everything
};

// The same transport with sealed messages. Collective: all ranks, or none.
std::shared_ptr<Transport> seal_transport(std::shared_ptr<Transport> transport,
                                          const SealOptions& options);

// Why a rank is lost in whose name a message came that it did not send so.
inline constexpr char kTampered[] =
    "a message in its name was altered, forged, replayed or left out on the way";

// What goes before a sealed message.
inline constexpr std::size_t kSealBytes = 24;

}  // namespace trireme::detail
