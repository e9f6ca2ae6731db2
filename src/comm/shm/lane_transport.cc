#include "comm/shm/lane_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/index.h"

// In a lane, the length of a message goes before its bytes. Messages go through in parts of a
// quarter of the lane, so that the other end begins before the lane is full.

namespace trireme::detail {
namespace {

using LengthWord = std::uint64_t;

// One end of a lane: `at` counts the bytes that this end has moved.
class Ring {
 public:
  Ring(const Control& control, Lane& lane)
      : memory_(control.ring(lane)), bytes_(control.lane_bytes()) {}

  void put(std::uint64_t at, const std::byte* data, std::size_t bytes) const {
    const std::size_t place = at % bytes_;
    const std::size_t first = std::min(bytes, bytes_ - place);
    std::memcpy(memory_ + place, data, first);
    std::memcpy(memory_, data + first, bytes - first);
  }
  void get(std::uint64_t at, std::byte* data, std::size_t bytes) const {
    const std::size_t place = at % bytes_;
    const std::size_t first = std::min(bytes, bytes_ - place);
    std::memcpy(data, memory_ + place, first);
    std::memcpy(data + first, memory_, bytes - first);
  }
  std::size_t bytes() const { return bytes_; }
  std::size_t part() const { return bytes_ / 4; }

 private:
  std::byte* memory_;
  std::size_t bytes_;
};

}  // namespace

struct LaneTransport::Message {
  std::byte* to = nullptr;          // of one that comes
  const std::byte* from = nullptr;  // of one that goes
  std::size_t bytes = 0;            // its length; of one that comes, the most that it may have
  Length length = Length::kExact;
  bool length_moved = false;
  std::size_t moved = 0;
  bool finished = false;
};

LaneTransport::LaneTransport(const Endpoint& endpoint)
    : endpoint_(endpoint), pairs_(index(endpoint.size()) * kLanes) {}

LaneTransport::~LaneTransport() = default;

LaneTransport::Pair& LaneTransport::pair(int peer, std::uint32_t tag) {
  TRIREME_ASSERT(tag < kLanes, "there is no lane for tag ", tag);
  return pairs_[index(peer) * kLanes + tag];
}

Request LaneTransport::add(Messages& messages, Message message) {
  auto owned = std::make_unique<Message>(message);
  Message* const handle = owned.get();
  messages_.emplace(handle, std::move(owned));
  if (!abandoned_) {
    messages.push_back(handle);
    ++moving_;
  }
  return Request(handle);
}

Request LaneTransport::send(
    int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) {
  Request request = add(pair(to, tag).out, {.from = data, .bytes = bytes, .length = length});
  push(to, tag);
  return request;
}

Request LaneTransport::receive(
    int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) {
  Request request = add(pair(from, tag).in, {.to = data, .bytes = bytes, .length = length});
  pull(from, tag);
  return request;
}

bool LaneTransport::finished(Request& request) {
  if (!request.pending()) {
    return true;
  }
  auto* const message = static_cast<Message*>(request.handle());
  if (!message->finished) {
    return false;
  }
  messages_.erase(message);
  request.clear();
  return true;
}

void LaneTransport::drop(Request& request) {
  auto* const message = static_cast<Message*>(request.handle());
  for (Pair& each : pairs_) {
    moving_ -= std::erase(each.in, message);
  }
  messages_.erase(message);
  request.clear();
}

bool LaneTransport::progress() {
  if (moving_ == 0) {
    return false;
  }
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    for (std::uint32_t tag = 0; tag < kLanes; ++tag) {
      moved |= push(peer, tag);
      moved |= pull(peer, tag);
    }
  }
  return moved;
}

bool LaneTransport::push(int to, std::uint32_t tag) {
  Messages& messages = pair(to, tag).out;
  if (messages.empty()) {
    return false;
  }
  Lane& lane = endpoint_.control().lane(rank(), to, tag);
  const Ring ring(endpoint_.control(), lane);
  std::uint64_t at = lane.pushed.load(std::memory_order_relaxed);
  const std::uint64_t before = at;
  while (!messages.empty()) {
    Message& message = *messages.front();
    const std::size_t room =
        ring.bytes() - static_cast<std::size_t>(at - lane.taken.load(std::memory_order_seq_cst));
    std::size_t part = std::min(room, ring.part());
    if (!message.length_moved) {
      if (room < sizeof(LengthWord)) {
        break;
      }
      const LengthWord length = message.bytes;
      ring.put(at, reinterpret_cast<const std::byte*>(&length), sizeof(length));
      at += sizeof(length);
      part = std::min(part, room - sizeof(length));
      message.length_moved = true;
    }
    part = std::min(part, message.bytes - message.moved);
    if (part > 0) {
      ring.put(at, message.from + message.moved, part);
      message.moved += part;
      at += part;
    }
    lane.pushed.store(at, std::memory_order_seq_cst);
    message.finished = message.moved == message.bytes;
    if (message.finished) {
      messages.pop_front();
      --moving_;
    } else if (part == 0) {
      break;
    }
  }
  if (at != before) {
    endpoint_.ring(to);
  }
  return at != before;
}

bool LaneTransport::pull(int from, std::uint32_t tag) {
  Messages& messages = pair(from, tag).in;
  if (messages.empty()) {
    return false;
  }
  Lane& lane = endpoint_.control().lane(from, rank(), tag);
  const Ring ring(endpoint_.control(), lane);
  std::uint64_t at = lane.taken.load(std::memory_order_relaxed);
  const std::uint64_t before = at;
  while (!messages.empty()) {
    Message& message = *messages.front();
    std::size_t there = static_cast<std::size_t>(lane.pushed.load(std::memory_order_seq_cst) - at);
    if (!message.length_moved) {
      if (there < sizeof(LengthWord)) {
        break;
      }
      LengthWord length = 0;
      ring.get(at, reinterpret_cast<std::byte*>(&length), sizeof(length));
      // Another call's: whoever compares the announcements finds that, and nothing more is taken.
      if (length > message.bytes || (message.length == Length::kExact && length != message.bytes)) {
        break;
      }
      message.bytes = length;
      message.length_moved = true;
      at += sizeof(length);
      there -= sizeof(length);
    }
    const std::size_t part = std::min({there, ring.part(), message.bytes - message.moved});
    if (part > 0) {
      ring.get(at, message.to + message.moved, part);
      message.moved += part;
      at += part;
    }
    lane.taken.store(at, std::memory_order_seq_cst);
    message.finished = message.moved == message.bytes;
    if (message.finished) {
      messages.pop_front();
      --moving_;
    } else if (part == 0) {
      break;
    }
  }
  if (at != before) {
    endpoint_.ring(from);
  }
  return at != before;
}

void LaneTransport::abandon() {
  abandoned_ = true;
  moving_ = 0;
  for (Pair& each : pairs_) {
    each = {};
  }
}

std::unique_ptr<Transport> LaneTransport::duplicate(const ExchangeBytes& /*exchange*/) {
  throw InternalError("the lanes of shared memory cannot be duplicated");
}

}  // namespace trireme::detail
