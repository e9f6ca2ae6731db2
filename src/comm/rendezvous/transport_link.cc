#include "comm/rendezvous/transport_link.h"

#include <cerrno>
#include <cstring>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::uint32_t kMeetingTag = Transport::kTags - 1;
constexpr Milliseconds kTransportRest{1};

}  // namespace

TransportLink::~TransportLink() {
  transport_.drop(receiving_);
  for (Sending& sending : outgoing_) {
    if (!transport_.finished(sending.request)) {
      static_cast<void>(sending.bytes.release());  // it may still be read
    }
  }
}

std::string TransportLink::peer() const {
  return concat("rank ", peer_);
}

void TransportLink::expect(std::size_t bytes) {
  incoming_ = std::make_unique<std::string>(bytes, '\0');
  receiving_ = transport_.receive(peer_,
                                  kMeetingTag,
                                  reinterpret_cast<std::byte*>(incoming_->data()),
                                  bytes,
                                  Transport::Length::kUpTo);
}

void TransportLink::send_one(std::string bytes) {
  auto kept = std::make_unique<std::string>(std::move(bytes));
  Request request = transport_.send(peer_,
                                    kMeetingTag,
                                    reinterpret_cast<const std::byte*>(kept->data()),
                                    kept->size(),
                                    Transport::Length::kUpTo);
  outgoing_.push_back({std::move(kept), std::move(request)});
}

void TransportLink::push(std::string bytes, const std::vector<int>& /*fds*/) {
  const std::uint64_t length = bytes.size();
  send_one({reinterpret_cast<const char*>(&length), sizeof(length)});
  send_one(std::move(bytes));
}

void TransportLink::flush() {
  while (!outgoing_.empty() && transport_.finished(outgoing_.front().request)) {
    outgoing_.pop_front();
  }
}

std::optional<Message> TransportLink::pull() {
  // Nothing is expected before somebody asks: what is sent after the meeting is for others.
  if (open() && !incoming_) {
    expect(sizeof(std::uint64_t));
  }
  while (open() && transport_.finished(receiving_)) {
    if (has_length_) {
      has_length_ = false;
      Message message{std::move(*incoming_), {}};
      incoming_.reset();
      return message;
    }
    std::uint64_t length = 0;
    std::memcpy(&length, incoming_->data(), sizeof(length));
    if (length == 0 || length > longest()) {
      close("it sent something that Trireme does not send");
      break;
    }
    has_length_ = true;
    expect(length);
  }
  if (const auto why = transport_.lost(peer_); open() && why) {
    close(*why);
  }
  return std::nullopt;
}

void TransportLink::close(const std::string& why) {
  Link::close(why);
  closed_ = true;
}

void TransportLink::wait(short /*events*/, const Deadline& /*deadline*/) {
  if (!transport_.progress()) {
    transport_.rest(kTransportRest);
  }
}

std::unique_ptr<Link> TransportDoor::accept() {
  if (is_closed()) {
    errno = EAGAIN;
    return nullptr;
  }
  return std::make_unique<TransportLink>(transport_, next_++);
}

void TransportDoor::wait(std::vector<pollfd>& /*entries*/, Milliseconds /*most*/) {
  if (!transport_.progress()) {
    transport_.rest(kTransportRest);
  }
}

}  // namespace trireme::detail
