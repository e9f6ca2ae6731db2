#pragma once

#include <cstdint>

#include "trireme/comm/world.h"

namespace trireme::bench {

// What has gone to other machines so far.
struct Traffic {
  std::int64_t ledger = 0;      // this rank's messages, as the world counts them
  std::int64_t interfaces = 0;  // all of this machine, as its interfaces count; one rank says it
};
Traffic traffic_of(const World& world);

// The time in which a link of so many Mbit/s carries the bytes of a message and the headers of
// their frames.
double link_ms(double bytes, int megabits);

}  // namespace trireme::bench
