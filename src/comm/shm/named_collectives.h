#pragma once

#include <memory>

#include "comm/algo/channel.h"
#include "comm/algo/message_collectives.h"
#include "comm/shm/collectives.h"
#include "comm/shm/endpoint.h"

namespace trireme::detail {

// What an algorithm that was asked for by name does in another way than the ranks of a machine do
// by themselves (collectives.h): over messages through lanes, in the same steps as between
// machines, and so in the same order of summation. Everything else is direct anyhow.
class NamedCollectives {
 public:
  // The endpoint has lanes, and outlives it, as does what is done `directly`.
  NamedCollectives(const Endpoint& endpoint, Algorithm algorithm, Collectives& directly);

  Steps start(const Call& call);
  bool pump() { return channel_.transport().progress(); }
  // Throws ConfigError: the lanes are on the host.
  [[noreturn]] void refuse(Device device) const;

 private:
  Steps in_its_turn(const Call& call);

  const Endpoint& endpoint_;
  const Algorithm algorithm_;
  Collectives& directly_;
  Channel channel_;
  MessageCollectives collectives_;
};

// Whether there is anything that an algorithm does differently.
bool needs_lanes(Algorithm algorithm);

}  // namespace trireme::detail
