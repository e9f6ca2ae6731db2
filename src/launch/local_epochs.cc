// The ranks of this machine in an elastic job: what they ask for, what is kept for them, and their
// places in an epoch.

#include <algorithm>
#include <cerrno>
#include <locale>
#include <sstream>
#include <utility>

#include <sys/socket.h>

#include "launch/local_ranks.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {

void LocalRanks::hear_requests() {
  for (RankProcess& rank : ranks_) {
    while (rank.membership.valid()) {
      std::optional<Packet> packet = receive_packet(rank.membership.get(), MSG_DONTWAIT);
      if (!packet) {
        if (errno == 0) {
          rank.membership.reset();  // it has ended, or closed what it does not know
        }
        break;
      }
      answer(rank, std::move(*packet));
    }
    if (rank.wants_memory && rank.membership.valid()) {
      hand_out_memory(rank);
    }
  }
}

void LocalRanks::answer(RankProcess& rank, Packet packet) {
  std::istringstream fields(packet.text);
  fields.imbue(std::locale::classic());
  std::string word;
  std::int64_t epoch = -1;
  std::int64_t use = 0;
  fields >> word >> epoch >> use;
  if (word == kNextWord) {
    // One that hears only now of an earlier epoch's end is already a member of the next.
    rank.asks |= epoch == identity_.epoch;
  } else if (word == kKeepWord && packet.descriptors.size() == 1) {
    ++news_;
    kept_memory_.push_back({epoch, use, std::move(packet.descriptors.front())});
    if (kept_memory_.size() > kMostDescriptors) {
      kept_memory_.erase(kept_memory_.begin());
    }
  } else if (word == kForgetWord) {
    ++news_;
    std::erase_if(kept_memory_,
                  [&](const KeptMemory& kept) { return kept.epoch < epoch && kept.use == use; });
  } else if (word == kKeptWord) {
    rank.wants_memory = true;
  }
}

void LocalRanks::hand_out_memory(RankProcess& rank) const {
  std::vector<int> all;
  all.reserve(kept_memory_.size());
  for (const KeptMemory& kept : kept_memory_) {
    all.push_back(kept.memory.get());
  }
  try {
    send_with_descriptors(rank.membership.get(), kKeptWord, all);
    rank.wants_memory = false;
  } catch (const Error&) {
    // Too many descriptors are under way: again in the next turn. Or it has ended, and is reaped.
  }
}

void LocalRanks::forget_stops() {
  for (RankProcess& rank : ranks_) {
    if (rank.stopped) {
      rank.stopped = std::chrono::steady_clock::now();
    }
  }
}

void LocalRanks::end_epoch(bool lost, const std::string& why) const {
  const std::string word = lost ? concat(kLostWord, " ", why).substr(0, kLongestPacket) : kOverWord;
  for (const RankProcess& rank : ranks_) {
    if (!rank.ended && rank.membership.valid()) {
      tell(rank, word);
    }
  }
}

void LocalRanks::close_memberships() {
  for (RankProcess& rank : ranks_) {
    rank.membership.reset();
  }
}

std::vector<std::size_t> LocalRanks::members_of(const EpochOrder& order, int machine) const {
  const auto start = static_cast<std::size_t>(order.starts[index(machine)]);
  const std::size_t keep = static_cast<std::size_t>(order.ranks[index(machine)]) - start;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < ranks_.size() && places.size() < keep; ++place) {
    if (ranks_[place].is_member()) {
      places.push_back(place);
    }
  }
  // Fewer, where one has just ended: then this epoch ends as it begins.
  for (std::size_t place = 0, started = 0; started < start; ++place) {
    if (place >= ranks_.size() || ranks_[place].ended) {
      places.push_back(place);
      ++started;
    }
  }
  std::sort(places.begin(), places.end());
  return places;
}

Reached LocalRanks::reached() const {
  Reached all = reached_;
  for (const RankProcess& rank : ranks_) {
    const WorldHistory& history = history_in(rank.pulse.page());
    all.raise({history.begun.load(), history.again.load()});
  }
  return all;
}

// The rank is at rest, or has yet to be started: of its page this is what its launcher writes.
void LocalRanks::tell_history(const PulseMemory& pulse) const {
  WorldHistory& history = history_in(const_cast<PulsePage&>(pulse.page()));
  history.told = counts_;
  history.before = counts_before_;
  history.begun.store(reached_.begun);
  history.again.store(reached_.again);
}

void LocalRanks::begin_epoch(const EpochOrder& order, int machine) {
  drain_reports();  // by the ranks that they are of
  counts_before_ = std::exchange(counts_, order.counts);
  reached_ = reached();
  reached_.raise(order.reached);
  const std::vector<std::size_t> places = members_of(order, machine);
  identity_.epoch = order.epoch;
  identity_.world_size = order.world_size();
  identity_.local_size = order.ranks[index(machine)];
  identity_.first_rank = order.first_rank(machine);
  identity_.rendezvous = order.rendezvous;
  for (RankProcess& rank : ranks_) {
    rank.rank = -1;
    rank.report.reset();
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t place = places[i];
    const int local_rank = static_cast<int>(i);
    const int rank = identity_.first_rank + local_rank;
    if (place >= ranks_.size()) {
      ranks_.push_back(start_rank(place, rank));
      if (!options_.log_dir.empty()) {
        ranks_.back().open_log(log_of(place), options_.append_logs || appends_logs_);
      }
    } else if (ranks_[place].ended) {
      std::ofstream log = std::move(ranks_[place].log);
      ranks_[place] = start_rank(place, rank);
      ranks_[place].log = std::move(log);
    } else {
      ranks_[place].rank = rank;
      label(ranks_[place]);
      tell_history(ranks_[place].pulse);
      const EpochPlace there{order.epoch,
                             rank,
                             identity_.world_size,
                             local_rank,
                             identity_.local_size,
                             identity_.rendezvous};
      const bool listens = rank == 0 && listener_.valid() && !there.rendezvous.empty();
      tell(ranks_[place],
           there.to_text(),
           listens ? std::vector<int>{listener_.get()} : std::vector<int>());
    }
  }
  for (RankProcess& rank : ranks_) {
    rank.asks = false;
    if (rank.rank < 0 && !rank.ended) {
      rank.told_to_end = true;
      tell(rank, kLeaveWord);
    }
  }
}

MachineStatus LocalRanks::status() const {
  MachineStatus status{.epoch = identity_.epoch, .keeps = !kept_memory_.empty(), .kept = news_};
  for (const RankProcess& rank : ranks_) {
    status.members += rank.is_member() ? 1 : 0;
    status.asks |= rank.is_member() && rank.asks;
    status.ready &= !rank.is_member() || rank.asks;
    status.finished |= rank.rank >= 0 && rank.ended && rank.status == 0;
  }
  if (status.ready) {  // not with every step
    status.reached = reached();
  }
  return status;
}

// One that is gone by now is reaped, and the epoch ends as it began.
void LocalRanks::tell(const RankProcess& rank,
                      const std::string& text,
                      const std::vector<int>& descriptors) {
  try {
    send_with_descriptors(rank.membership.get(), text, descriptors, MSG_DONTWAIT);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace trireme::detail
