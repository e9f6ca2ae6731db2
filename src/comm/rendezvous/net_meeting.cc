#include "comm/rendezvous/net_meeting.h"

#include <thread>

#include <fcntl.h>

#include "comm/rendezvous/packing.h"
#include "comm/rendezvous/rank_meeting.h"
#include "comm/rendezvous/tcp_link.h"
#include "comm/rendezvous/transport_link.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kNetRetryPause{50};

// What mpirun connects is one job, whatever its machines call it.
std::string job_of(const NetMeetingOptions& options) {
  return options.transport == nullptr ? options.identity.job : "";
}

// For messages: where ranks meet, and what to check where some do not come.
std::string meeting_place_of(const NetMeetingOptions& options) {
  return options.transport == nullptr ? options.place : options.transport->description();
}
std::string hint_for_mpi_or(const NetMeetingOptions& options, const std::string& otherwise) {
  return options.transport == nullptr ? otherwise
                                      : "check that mpirun has started every rank, that each gets "
                                        "as far as init(), and that MPI connects their machines";
}

FileDescriptor listener_of(const NetMeetingOptions& options) {
  if (options.listener >= 0) {
    // It was inherited, and stays open for the next meeting: programs that rank 0 starts must not
    // seem to listen there.
    fcntl(options.listener, F_SETFD, FD_CLOEXEC);
    return FileDescriptor(fcntl(options.listener, F_DUPFD_CLOEXEC, 0));
  }
  const MeetingPlace place = parse_meeting_place(options.place, options.where);
  auto addresses = resolve(place);
  // A machine may know its own name as an address that only it can reach.
  if (options.identity.size != options.identity.local_size && addresses.front().is_loopback()) {
    addresses = resolve({"0.0.0.0", place.port, place.source});
  }
  for (const Deadline patience = patience_with_earlier(options.identity);;) {
    try {
      return listen_at(addresses, place);
    } catch (const ConfigError&) {
      if (patience.passed()) {
        throw;
      }
      std::this_thread::sleep_for(kNetRetryPause);
    }
  }
}

class NetJoiner final : public RankJoiner {
 public:
  NetJoiner(const NetMeetingOptions& options, const Deadline& deadline)
      : RankJoiner(make_member(options.identity), deadline),
        options_(options),
        deadline_(deadline) {}

  std::string place() const override { return meeting_place_of(options_); }
  std::unique_ptr<Link> knock(std::string* why) override {
    if (options_.transport == nullptr) {
      const MeetingPlace place = parse_meeting_place(options_.place, options_.where);
      return try_connect(
          resolve(place), deadline_, [this] { look(""); }, why);
    }
    if (has_knocked_) {
      timed_out(*why);  // the way is gone
    }
    has_knocked_ = true;
    return std::make_unique<TransportLink>(*options_.transport, 0);
  }
  void look(const std::string& /*trouble*/) override { options_.look(Milliseconds(0)); }

 protected:
  std::string hint() const override {
    return hint_for_mpi_or(
        options_,
        "check that rank 0 is running, that the address belongs to its machine, and that "
        "a firewall lets this machine through to the port");
  }

 private:
  const NetMeetingOptions& options_;
  const Deadline& deadline_;
  bool has_knocked_ = false;
};

}  // namespace

NetMeeting::NetMeeting(const NetMeetingOptions& options)
    : rank_(options.identity.rank),
      size_(options.identity.size),
      deadline_(options.timeout),
      look_(options.look) {
  if (rank_ == 0) {
    host(options);
  } else {
    join(options);
  }
  number_machines(members_);
}

void NetMeeting::host(const NetMeetingOptions& options) {
  members_.push_back(make_member(options.identity));
  links_.emplace_back();
  world_ = fresh_name();
  key_ = random_bytes(kKeyBytes);
  if (size_ == 1) {
    return;
  }
  std::unique_ptr<Door> door;
  if (options.transport != nullptr) {
    door = std::make_unique<TransportDoor>(*options.transport);
  } else {
    door = std::make_unique<TcpDoor>(listener_of(options));
  }
  RankHost policy({.self = members_[0],
                   .reached = concat("reached ", meeting_place_of(options)),
                   .hint = hint_for_mpi_or(options,
                                           "check that the other machines were started, and that a "
                                           "firewall lets them through to this port"),
                   .look = options.look});
  Gathering gathering =
      host_meeting(*door, policy, pass_of(options.identity, job_of(options)), size_, deadline_);
  for (std::size_t rank = 1; rank < gathering.guests.size(); ++rank) {
    links_.push_back(std::move(gathering.guests[rank].link));
    members_.push_back(*unpack_member(gathering.guests[rank].said.bytes));
  }
  Packer all;
  all.text(world_).text(key_);
  for (Member member : members_) {
    member.algorithm = member.library = member.program = member.path = "";
    all.text(pack_member(member));
  }
  tell_all(all.take());
}

void NetMeeting::join(const NetMeetingOptions& options) {
  NetJoiner policy(options, deadline_);
  links_.push_back(
      join_meeting(policy, pass_of(options.identity, job_of(options)), kNetRetryPause, deadline_));
  const std::string all = hear();
  Unpacker fields(all);
  world_ = fields.text();
  key_ = fields.text();
  for (int rank = 0; rank < size_; ++rank) {
    auto member = unpack_member(fields.text());
    if (!member) {
      broken(0, "rank 0 sent something else than the ranks of the world");
    }
    members_.push_back(std::move(*member));
  }
}

void NetMeeting::tell_all(const std::string& message) {
  const Deadline patience = a_little_later();
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)]->send_by(patience, word_of_rank0(message))) {
      lost(rank);
    }
  }
}

std::string NetMeeting::hear() {
  const auto message =
      links_[0]->receive(Deadline(deadline_.left() + kGraceForRank0), [this] { look(); });
  if (!message) {
    const std::string& why = links_[0]->why_closed();
    broken(0, why.empty() ? "lost rank 0" : concat("lost rank 0 (", why, ")"));
  }
  return heard_from_rank0(message->bytes, rank_);
}

void NetMeeting::lost(int rank) {
  const std::string what = concat("lost rank ", rank, " on ", members_[index(rank)].host);
  for (int other = 1; other < size_; ++other) {
    if (other != rank) {
      links_[index(other)]->send_by(Deadline(kTimeToTell), word_of_loss(rank, reason(), what));
    }
  }
  broken(rank, what);
}

void NetMeeting::broken(int rank, const std::string& what) const {
  throw CommError(
      reason(), rank, concat("rank ", rank_, " of ", size_, ": ", what, " during the rendezvous"));
}

Deadline NetMeeting::a_little_later() const {
  return Deadline(deadline_.left() + kGraceForRank0 / 2);
}

CommError::Reason NetMeeting::reason() const {
  return deadline_.passed() ? CommError::Reason::kRendezvousTimeout : CommError::Reason::kPeerDied;
}

std::vector<std::string> NetMeeting::exchange(const std::string& mine) {
  std::vector<std::string> parts(index(size_));
  parts[index(rank_)] = mine;
  if (rank_ != 0) {
    links_[0]->send_by(a_little_later(), mine);  // where it has ended, it may have said why
    parts = Unpacker(hear()).texts();
    TRIREME_ASSERT(parts.size() == index(size_), "an exchange has ", parts.size(), " parts");
    return parts;
  }
  const Deadline patience = a_little_later();
  for (int rank = 1; rank < size_; ++rank) {
    auto part = links_[index(rank)]->receive(patience, [this] { look(); });
    if (!part) {
      lost(rank);
    }
    parts[index(rank)] = std::move(part->bytes);
  }
  tell_all(Packer().texts(parts).take());
  return parts;
}

}  // namespace trireme::detail
