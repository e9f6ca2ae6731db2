#include "comm/net/network.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "comm/net/sealed_transport.h"
#include "comm/queue/blame.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr auto kTimeForGoodbyes = std::chrono::milliseconds(100);
// From a goodbye until the rank is blamed for it. It may have left because another is dead, whose
// connection breaks at the same time; and over another interface, what it sent before may come
// later than its goodbye.
// How far the ranks that wait for each other are followed: each is asked over the network.
constexpr int kMostAsked = 3;
constexpr auto kTimeForReasons = std::chrono::milliseconds(300);

// The time since this was first asked about `since`.
Clock::duration time_since(Clock::time_point& since) {
  const auto now = Clock::now();
  if (since == Clock::time_point{}) {
    since = now;
  }
  return now - since;
}

std::vector<int> machines_of(const std::vector<Member>& members) {
  std::vector<int> machines;
  machines.reserve(members.size());
  for (const Member& member : members) {
    machines.push_back(member.node);
  }
  return machines;
}

std::vector<int> all_ranks(std::size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string text_of(const LastCall& issued, std::uint64_t completed) {
  return concat(issued.text(), ", completed #", completed);
}

}  // namespace

Network::Network(std::shared_ptr<Transport> transport, std::vector<Member> members)
    : transport_(std::move(transport)),
      members_(std::move(members)),
      machines_(machines_of(members_)),
      channel_(transport_, all_ranks(members_.size()), kWorldChannel, machines_),
      control_(channel_) {
  static_assert(Channel::kChannels <= 64 * std::tuple_size_v<GroupOffer>);
  for (std::uint32_t channel = 0; channel < Channel::kChannels; ++channel) {
    free_[channel / 64] |= std::uint64_t{1} << (channel % 64);
  }
}

GroupOffer Network::free_channels() const {
  const std::lock_guard lock(channels_mutex_);
  return free_;
}

void Network::take_channel(std::uint32_t channel) {
  const std::lock_guard lock(channels_mutex_);
  const std::uint64_t bit = std::uint64_t{1} << (channel % 64);
  TRIREME_CHECK((free_[channel / 64] & bit) != 0,
                "split: expected one thread at a time to split communicators of a world, found two "
                "on rank {}: let one wait for the other",
                {transport_->rank()});
  free_[channel / 64] &= ~bit;
}

void Network::give_back_channel(std::uint32_t channel) {
  // The control messages of a world that is gone are still for its groups.
  if (channel > kColumnChannel) {
    const std::lock_guard lock(channels_mutex_);
    free_[channel / 64] |= std::uint64_t{1} << (channel % 64);
  }
}

void Network::closed(bool clean, std::uint64_t group, const std::vector<int>& ranks) {
  --open_;
  if (abandoned_) {
    return;
  }
  if (clean) {
    if (open_ == 0) {
      control_.say_left();
    } else {
      control_.say_closed(group, ranks);
    }
    return;
  }
  // In the middle of something that nobody knows of: says goodbye, where that can be done without
  // moving anything else.
  if (transport_->sends_without_moving()) {
    control_.say_left_in_passing();
  }
  control_.note_failure({CommError::Reason::kAborted,
                         transport_->rank(),
                         concat("rank {} has dropped a communicator in the middle of an operation",
                                {transport_->rank()})});
  abandon();
}

void Network::abandon() {
  abandoned_ = true;
  transport_->abandon();
}

std::string Network::last() const {
  return text_of(last_issued_, completed_);
}

std::uint64_t group_number(const std::string& name) {
  if (name.empty()) {
    return 0;
  }
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char byte : name) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  }
  return hash;
}

std::string name_of(const Member& member) {
  return concat("rank {} (pid {} on machine {}, {})",
                {member.rank, member.pid, member.node, member.host});
}

NetWatch::NetWatch(std::shared_ptr<Network> network,
                   std::vector<int> ranks,
                   FlightFolder folder,
                   std::string group)
    : network_(std::move(network)),
      ranks_(std::move(ranks)),
      folder_(std::move(folder)),
      group_(std::move(group)),
      lost_since_(ranks_.size()),
      left_since_(ranks_.size()) {}

bool NetWatch::pump() {
  const bool moved = network_->transport()->progress();
  return network_->control().look([&] { return network_->doing(); }) || moved;
}

int NetWatch::rank_of(int world_rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), world_rank);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

CommError NetWatch::told() const {
  const CommError& failure = *network_->control().failure();
  return {failure.reason(), rank_of(failure.peer()), failure.what()};
}

std::optional<CommError> NetWatch::loss(const std::vector<int>& missing) {
  ControlMessages& control = network_->control();
  // One that is gone without a word is a failure for everyone, whomever they wait for.
  for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
    const int world = world_rank(peer);
    const auto why = network_->transport()->lost(world);
    if (why && world != network_->transport()->rank() && !control.has_left(world)) {
      // Its goodbye may still be on its way, over another interface.
      if (time_since(lost_since_[index(peer)]) < kTimeForGoodbyes) {
        continue;
      }
      return CommError(
          CommError::Reason::kPeerDied,
          peer,
          concat("the connection to {} is lost ({}{}",
                 {name(peer),
                  *why,
                  *why == kTampered ? "): somebody changes what the network carries"
                                    : "): it crashed or was killed, or its machine is gone"}));
    }
  }
  const std::uint64_t group = group_number(group_);
  for (const int peer : missing) {
    const int world = world_rank(peer);
    if ((control.has_left(world) || control.has_closed(world, group)) &&
        time_since(left_since_[index(peer)]) >= kTimeForReasons) {
      return lost_rank(CommError::Reason::kPeerLeft, peer, name(peer));
    }
  }
  return std::nullopt;
}

std::vector<int> NetWatch::behind(const std::vector<int>& late) {
  return follow(late, kMostAsked, [&](const std::vector<int>& ranks) {
    std::vector<int> asked;
    asked.reserve(ranks.size());
    for (const int rank : ranks) {
      asked.push_back(world_rank(rank));
    }
    std::vector<int> next;
    next.reserve(ranks.size());
    for (const int each :
         network_->control().ask_whom_they_wait_for(asked, [&] { return network_->doing(); })) {
      next.push_back(each < 0 ? -1 : rank_of(each));
    }
    return next;
  });
}

void NetWatch::spread(const CommError& failure) {
  ControlMessages& control = network_->control();
  if (!control.failure()) {
    const int self = network_->transport()->rank();
    const int blamed = failure.peer() < 0 ? -1 : world_rank(failure.peer());
    control.say_failed({failure.reason(), blamed, failure.what()}, network_->last());
    std::ostringstream text;
    text << failure.what() << "\n";
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
      const int world = world_rank(peer);
      text << name(peer) << ": ";
      if (world == self) {
        text << "issued " << network_->last();
      } else if (control.has_left(world)) {
        text << "has left the world";
      } else if (control.last_of(world)) {
        text << "issued " << *control.last_of(world);
      } else {
        text << "did not answer";
      }
      text << "\n";
    }
    if (failure.reason() != CommError::Reason::kStopped) {
      folder_.write_summary(group_, text.str());
    }
  }
  network_->abandon();
}

void NetWatch::issued(const Call& call) {
  last_issued_ = {static_cast<std::uint32_t>(call.number), facts_of(call.operation)};
  network_->set_last(last_issued_, completed_);
}

void NetWatch::completed(const Call& call) {
  completed_ = call.number;
  network_->set_last(last_issued_, completed_);
}

std::string NetWatch::last_operations() const {
  return concat("; last operation of rank {}: {}",
                {network_->transport()->rank(), text_of(last_issued_, completed_)});
}

std::string NetWatch::name(int rank) const {
  return name_of(network_->members()[index(world_rank(rank))]);
}

}  // namespace trireme::detail
