#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "comm/shm/endpoint.h"
#include "comm/transport/transport.h"

namespace trireme::detail {

// Messages between the ranks of one machine, through the lanes of their control memory: for the
// algorithms that are written over messages. A sender copies into the lane, a receiver out of it,
// at the same time; neither touches the memory of the other, so that nothing is on its way any more
// as soon as this rank does not move it. Tags below kLanes, each with a lane of its own.
//
// Whoever is lost, or waits, is found by the owner of the endpoint.
class LaneTransport final : public Transport {
 public:
  explicit LaneTransport(const Endpoint& endpoint);
  ~LaneTransport() override;

  int rank() const override { return endpoint_.rank(); }
  int size() const override { return endpoint_.size(); }
  std::string description() const override { return "shared memory"; }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override;
  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override;
  bool finished(Request& request) override;
  void drop(Request& request) override;
  bool progress() override;
  void rest(Milliseconds /*most*/) override {}
  void wake() override {}
  std::optional<std::string> lost(int /*rank*/) override { return std::nullopt; }
  void abandon() override;
  bool releases_memory() const override { return true; }
  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override;

 private:
  struct Message;
  using Messages = std::deque<Message*>;
  // Both directions of a tag between this rank and another.
  struct Pair {
    Messages out;
    Messages in;
  };

  Pair& pair(int peer, std::uint32_t tag);
  Request add(Messages& messages, Message message);
  bool push(int to, std::uint32_t tag);
  bool pull(int from, std::uint32_t tag);

  const Endpoint& endpoint_;
  std::vector<Pair> pairs_;                                          // by peer, then by tag
  std::unordered_map<Message*, std::unique_ptr<Message>> messages_;  // until they are asked for
  std::size_t moving_ = 0;                                           // that are in a pair
  bool abandoned_ = false;
};

}  // namespace trireme::detail
