#include "comm/algo/channel.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::detail {

Channel::Channel(std::shared_ptr<Transport> transport,
                 std::vector<int> ranks,
                 std::uint32_t number,
                 std::vector<int> machines)
    : transport_(std::move(transport)),
      ranks_(std::move(ranks)),
      number_(number),
      machines_(std::move(machines)) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), transport_->rank());
  TRIREME_ASSERT(self != ranks_.end(), "a channel without this rank");
  TRIREME_ASSERT(number < kChannels, "no channel ", number);
  rank_ = static_cast<int>(self - ranks_.begin());
}

Request Channel::send(
    int to, Stream stream, const std::byte* data, std::size_t bytes, Transport::Length length) {
  const int world = world_rank(to);
  if (machines_[static_cast<std::size_t>(world)] !=
      machines_[static_cast<std::size_t>(transport_->rank())]) {
    bytes_between_machines_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  return transport_->send(world, tag(stream), data, bytes, length);
}

Request Channel::receive(
    int from, Stream stream, std::byte* data, std::size_t bytes, Transport::Length length) {
  return transport_->receive(world_rank(from), tag(stream), data, bytes, length);
}

RequestSet::~RequestSet() {
  // The operation ends in the middle, and its memory with it: nobody asks for these any more, since
  // what has arrived may be written only then.
  if (!entries_.empty()) {
    channel_.transport().abandon();
  }
}

bool RequestSet::completed() {
  std::erase_if(entries_,
                [&](Entry& entry) { return channel_.transport().finished(entry.request); });
  return entries_.empty();
}

std::vector<RequestSet> request_sets(Channel& channel, std::size_t count) {
  std::vector<RequestSet> requests;
  requests.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    requests.emplace_back(channel);
  }
  return requests;
}

std::vector<int> RequestSet::missing() const {
  std::vector<int> ranks;
  for (const Entry& entry : entries_) {
    if (std::find(ranks.begin(), ranks.end(), entry.peer) == ranks.end()) {
      ranks.push_back(entry.peer);
    }
  }
  return ranks;
}

}  // namespace trireme::detail
