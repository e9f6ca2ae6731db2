#include "comm/net/wire.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::detail {

Wire::Wire(std::shared_ptr<Transport> transport,
           std::vector<int> ranks,
           std::uint32_t channel,
           std::vector<int> machines)
    : transport_(std::move(transport)),
      ranks_(std::move(ranks)),
      channel_(channel),
      machines_(std::move(machines)) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), transport_->rank());
  TRIREME_ASSERT(self != ranks_.end(), "a wire without this rank");
  TRIREME_ASSERT((channel + 1) * kStreams <= Transport::kTags, "no tags left: channel ", channel);
  rank_ = static_cast<int>(self - ranks_.begin());
}

Ticket Wire::send(
    int to, Stream stream, const std::byte* data, std::size_t bytes, Transport::Length length) {
  const int world = world_rank(to);
  if (machines_[static_cast<std::size_t>(world)] !=
      machines_[static_cast<std::size_t>(transport_->rank())]) {
    bytes_between_machines_ += static_cast<std::int64_t>(bytes);
  }
  return transport_->send(world, tag(stream), data, bytes, length);
}

Ticket Wire::receive(
    int from, Stream stream, std::byte* data, std::size_t bytes, Transport::Length length) {
  return transport_->receive(world_rank(from), tag(stream), data, bytes, length);
}

Flights::~Flights() {
  if (!landed()) {
    wire_.transport().abandon();
  }
}

bool Flights::landed() {
  std::erase_if(entries_, [&](Entry& entry) { return wire_.transport().finished(entry.ticket); });
  return entries_.empty();
}

std::vector<Flights> make_flights(Wire& wire, std::size_t count) {
  std::vector<Flights> flights;
  flights.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    flights.emplace_back(wire);
  }
  return flights;
}

std::vector<int> Flights::missing() const {
  std::vector<int> ranks;
  for (const Entry& entry : entries_) {
    if (std::find(ranks.begin(), ranks.end(), entry.peer) == ranks.end()) {
      ranks.push_back(entry.peer);
    }
  }
  return ranks;
}

}  // namespace trireme::detail
