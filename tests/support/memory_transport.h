#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/transport/transport.h"

// A transport of two ranks in memory, whose messages a test can look at, and change.

namespace trireme::testing {

using detail::ExchangeBytes;
using detail::Request;
using detail::Transport;

// What two ranks of one thread have sent each other: by who sent it, and its tag.
using Post = std::map<std::pair<int, std::uint32_t>, std::deque<std::vector<std::byte>>>;

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(int rank, std::shared_ptr<Post> post) : rank_(rank), post_(std::move(post)) {}

  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::string description() const override { return "memory"; }
  Request send(int, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length) override {
    (*post_)[{rank_, tag}].emplace_back(data, data + bytes);
    return {};
  }
  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length) override {
    auto& posted = posted_[{from, tag}];
    posted.push_back(std::make_unique<Receive>(Receive{{from, tag}, data, bytes}));
    last_box = data;
    return Request(posted.back().get());
  }
  bool finished(Request& request) override {
    if (!request.pending()) {
      return true;
    }
    auto* receive = static_cast<Receive*>(request.handle());
    auto& waiting = (*post_)[receive->key];
    if (abandoned || waiting.empty() || posted_[receive->key].front().get() != receive) {
      return false;
    }
    if (waiting.front().size() > receive->bytes) {
      return false;  // from a rank that made another call: as other transports, never finished
    }
    std::memcpy(receive->data, waiting.front().data(), waiting.front().size());
    waiting.pop_front();
    drop(request);
    return true;
  }
  void drop(Request& request) override {
    if (request.pending()) {
      const auto* receive = static_cast<Receive*>(request.handle());
      std::erase_if(posted_[receive->key], [&](const auto& one) { return one.get() == receive; });
      request.clear();
    }
  }
  bool progress() override { return false; }
  void rest(Milliseconds) override { std::this_thread::sleep_for(Milliseconds(1)); }
  void wake() override {}
  std::optional<std::string> lost(int) override { return std::nullopt; }
  void abandon() override { abandoned = true; }
  std::unique_ptr<Transport> duplicate(const ExchangeBytes&) override {
    return std::make_unique<MemoryTransport>(rank_, post_);
  }

  bool abandoned = false;
  const std::byte* last_box = nullptr;  // where the last message goes for which one asked

 private:
  struct Receive {
    std::pair<int, std::uint32_t> key;
    std::byte* data;
    std::size_t bytes;
  };
  int rank_;
  std::shared_ptr<Post> post_;
  std::map<std::pair<int, std::uint32_t>, std::deque<std::unique_ptr<Receive>>> posted_;
};

}  // namespace trireme::testing
