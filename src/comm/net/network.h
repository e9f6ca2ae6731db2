#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/algo/channel.h"
#include "comm/net/control_messages.h"
#include "comm/order/matching.h"
#include "comm/queue/group_maker.h"
#include "comm/queue/operation_queue.h"
#include "comm/rendezvous/member.h"
#include "comm/transport/transport.h"

namespace trireme::detail {

// What the communicators over one transport share. All under `turns`.
class Network {
 public:
  // The first two channels are the world's: of all ranks, and of the columns of a hierarchy.
  static constexpr std::uint32_t kWorldChannel = 0;
  static constexpr std::uint32_t kColumnChannel = 1;

  Network(std::shared_ptr<Transport> transport, std::vector<Member> members);

  const std::shared_ptr<Transport>& transport() const { return transport_; }
  const std::vector<Member>& members() const { return members_; }
  const Member& self() const { return members_[static_cast<std::size_t>(transport_->rank())]; }
  const std::shared_ptr<Turns>& turns() const { return turns_; }
  ControlMessages& control() { return control_; }
  // Which machine each member is on.
  const std::vector<int>& machines() const { return machines_; }

  // --- channels, which groups take and give back; from any thread

  GroupOffer free_channels() const;
  // Throws ConfigError where it is not free.
  void take_channel(std::uint32_t channel);
  void give_back_channel(std::uint32_t channel);

  // --- communicators: with the last one to close, this rank leaves

  void opened() { ++open_; }
  // Number `group`, of these ranks.
  void closed(bool clean, std::uint64_t group, const std::vector<int>& ranks);
  // Nothing is moved any more: not to memory that is no longer an operation's.
  void abandon();

  // What this rank did last in any of them, for the others' messages.
  void set_last(const LastCall& issued, std::uint64_t completed) {
    last_issued_ = issued;
    completed_ = completed;
  }
  std::string last() const;
  void set_waits_for(int rank) { waits_for_ = rank; }
  ControlMessages::Doing doing() const { return {last(), waits_for_}; }

 private:
  const std::shared_ptr<Transport> transport_;
  const std::vector<Member> members_;
  const std::vector<int> machines_;
  const std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
  Channel channel_;
  ControlMessages control_;
  mutable std::mutex channels_mutex_;
  GroupOffer free_{};  // guarded by channels_mutex_
  int open_ = 0;
  bool abandoned_ = false;
  LastCall last_issued_;
  std::uint64_t completed_ = 0;
  int waits_for_ = -1;
};

// What messages call a group, whose name no other of its world has; 0: the world.
std::uint64_t group_number(const std::string& name);

// A channel that the communicator `group` has for itself, until the last holder lets go.
class ChannelLease {
 public:
  ChannelLease(std::shared_ptr<Network> network, std::uint32_t channel, std::uint64_t group)
      : network_(std::move(network)), channel_(channel), group_(group) {
    network_->take_channel(channel_);
  }
  ChannelLease(const ChannelLease&) = delete;
  ChannelLease& operator=(const ChannelLease&) = delete;
  ~ChannelLease() { network_->give_back_channel(channel_); }
  std::uint32_t channel() const { return channel_; }
  std::uint64_t group() const { return group_; }

 private:
  const std::shared_ptr<Network> network_;
  const std::uint32_t channel_;
  const std::uint64_t group_;
};

// How the ranks of one communicator over a network lose and tell each other.
class NetWatch {
 public:
  // `ranks`: of the transport, by the communicator's.
  NetWatch(std::shared_ptr<Network> network,
           std::vector<int> ranks,
           FlightFolder folder,
           std::string group);

  bool pump();
  bool was_told() const { return network_->control().failure().has_value(); }
  CommError told() const;
  std::optional<CommError> loss(const std::vector<int>& missing);
  void say_waits_for(int rank) { network_->set_waits_for(rank < 0 ? -1 : world_rank(rank)); }
  // Asks them.
  std::vector<int> behind(const std::vector<int>& late);
  void spread(const CommError& failure);
  void issued(const Call& call);
  void completed(const Call& call);
  std::string last_operations() const;
  std::string name(int rank) const;
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  void open() { network_->opened(); }
  void close(bool clean) { network_->closed(clean, group_number(group_), ranks_); }

 private:
  int rank_of(int world_rank) const;  // -1: not one of these

  const std::shared_ptr<Network> network_;
  const std::vector<int> ranks_;
  const FlightFolder folder_;
  const std::string group_;
  // By rank: when this was first noticed.
  std::vector<Clock::time_point> lost_since_;
  std::vector<Clock::time_point> left_since_;
  LastCall last_issued_;
  std::uint64_t completed_ = 0;
};

// "rank 2 (pid 4711 on machine 1, node-b)".
std::string name_of(const Member& member);

}  // namespace trireme::detail
