#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/net/transport.h"
#include "comm/steps.h"

namespace trireme::detail {

// Some ranks of a transport's world, numbered from 0, with messages of their own.
class Wire {
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

  // `ranks` of the transport, in order; `channel` tells wires over one transport apart. `machines`:
  // by rank of the transport, which machine it is on.
  Wire(std::shared_ptr<Transport> transport,
       std::vector<int> ranks,
       std::uint32_t channel,
       std::vector<int> machines);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Transport& transport() { return *transport_; }

  Ticket send(int to,
              Stream stream,
              const std::byte* data,
              std::size_t bytes,
              Transport::Length length = Transport::Length::kExact);
  Ticket receive(int from,
                 Stream stream,
                 std::byte* data,
                 std::size_t bytes,
                 Transport::Length length = Transport::Length::kExact);

  // Sent so far to ranks on other machines.
  std::int64_t bytes_between_machines() const { return bytes_between_machines_; }

 private:
  std::uint32_t tag(Stream stream) const {
    return channel_ * kStreams + static_cast<std::uint32_t>(stream);
  }

  std::shared_ptr<Transport> transport_;
  std::vector<int> ranks_;
  std::uint32_t channel_;
  std::vector<int> machines_;
  int rank_ = 0;
  std::int64_t bytes_between_machines_ = 0;
};

// Messages that an operation has on its way.
class Flights {
 public:
  explicit Flights(Wire& wire) : wire_(wire) {}
  Flights(Flights&&) = default;
  // Whoever drops messages that are on their way ends the world's traffic: nothing may write to
  // memory that is no longer the operation's.
  ~Flights();

  void add(int peer, Ticket ticket) {
    if (ticket.pending()) {
      entries_.push_back({std::move(ticket), peer});
    }
  }
  bool landed();
  std::vector<int> missing() const;
  Wire& wire() { return wire_; }

 private:
  struct Entry {
    Ticket ticket;
    int peer;
  };
  Wire& wire_;
  std::vector<Entry> entries_;
};

std::vector<Flights> make_flights(Wire& wire, std::size_t count);

// All of them have come, or gone.
class Landed final : public Condition {
 public:
  explicit Landed(Flights& flights) : flights_(flights) {}
  bool ready() override { return flights_.landed(); }
  std::vector<int> missing() override { return flights_.missing(); }

 private:
  Flights& flights_;
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

 private:
  Steps steps_;
};

}  // namespace trireme::detail
