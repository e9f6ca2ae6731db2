#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/queue/steps.h"
#include "comm/transport/transport.h"
#include "trireme/core/span.h"

namespace trireme::detail {

// Some ranks of a transport's world, numbered from 0, with messages of their own.
class Channel {
 public:
  // What messages are about; each stream keeps its own order.
  enum class Stream : std::uint32_t {
    kCall = 0,     // announcements of operations
    kData = 1,     // contributions
    kResult = 2,   // what has become of them
    kHeader = 3,   // of messages from rank to rank
    kMessage = 4,  // their data
    kControl = 5,  // leaving, and failures
  };
  static constexpr std::uint32_t kStreams = 8;
  // Of one transport; its last tag is that of its rendezvous.
  static constexpr std::uint32_t kChannels = Transport::kTags / kStreams;

  // `ranks` of the transport, in order; `number` tells channels over one transport apart.
  // `machines`: by rank of the transport, which machine it is on.
  Channel(std::shared_ptr<Transport> transport,
          std::vector<int> ranks,
          std::uint32_t number,
          std::vector<int> machines);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Transport& transport() { return *transport_; }

  Request send(int to,
               Stream stream,
               const std::byte* data,
               std::size_t bytes,
               Transport::Length length = Transport::Length::kExact);
  Request receive(int from,
                  Stream stream,
                  std::byte* data,
                  std::size_t bytes,
                  Transport::Length length = Transport::Length::kExact);

  // Sent so far to ranks on other machines. From any thread.
  std::int64_t bytes_between_machines() const {
    return bytes_between_machines_.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t tag(Stream stream) const {
    return number_ * kStreams + static_cast<std::uint32_t>(stream);
  }

  std::shared_ptr<Transport> transport_;
  std::vector<int> ranks_;
  std::uint32_t number_;
  std::vector<int> machines_;
  int rank_ = 0;
  std::atomic<std::int64_t> bytes_between_machines_{0};
};

// Messages that an operation has on its way.
class RequestSet {
 public:
  explicit RequestSet(Channel& channel) : channel_(channel) {}
  RequestSet(RequestSet&&) = default;
  // Whoever drops messages that are on their way ends the world's traffic: nothing may write to
  // memory that is no longer the operation's.
  ~RequestSet();

  void add(int peer, Request request) {
    if (request.pending()) {
      entries_.push_back({std::move(request), peer});
    }
  }
  void send(int to, Channel::Stream stream, const ConstSpan& data) {
    add(to, channel_.send(to, stream, data.bytes(), data.size_bytes()));
  }
  void receive(int from, Channel::Stream stream, const Span& data) {
    add(from, channel_.receive(from, stream, data.bytes(), data.size_bytes()));
  }
  bool completed();
  std::vector<int> missing() const;
  Channel& channel() { return channel_; }

 private:
  struct Entry {
    Request request;
    int peer;
  };
  Channel& channel_;
  std::vector<Entry> entries_;
};

std::vector<RequestSet> request_sets(Channel& channel, std::size_t count);

// All of them have come, or gone.
class Completed final : public Condition {
 public:
  explicit Completed(RequestSet& requests) : requests_(requests) {}
  bool ready() override { return requests_.completed(); }
  std::vector<int> missing() override { return requests_.missing(); }

 private:
  RequestSet& requests_;
};

// Another operation's steps, as a part of this one's.
class Part final : public Condition {
 public:
  explicit Part(Steps steps) : steps_(std::move(steps)) {}
  bool ready() override {
    while (!steps_.finished() && steps_.advance()) {
    }
    return steps_.finished();
  }
  std::vector<int> missing() override {
    Condition* condition = steps_.finished() ? nullptr : steps_.waiting();
    return condition != nullptr ? condition->missing() : std::vector<int>{};
  }
  bool all_posted() const override { return steps_.finished() || steps_.all_posted(); }

 private:
  Steps steps_;
};

}  // namespace trireme::detail
