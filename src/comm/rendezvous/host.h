#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/accept_pause.h"
#include "comm/rendezvous/link.h"

namespace trireme::detail {

// That a host talks to at once before it knows whether they belong to the job; more wait in the
// kernel's queue.
inline constexpr std::size_t kMostStrangers = 64;

// Somebody who has been admitted.
struct Guest {
  std::unique_ptr<Link> link;  // null: not here
  std::string name;            // for messages
  Message said;
};

// A meeting, as far as it has come.
struct Gathering {
  Deadline deadline;
  std::vector<Guest> guests;  // by place; the host's own stays empty
  // What the host has seen while it waited (who was refused, who was lost), for the message at the
  // deadline. Not without end, since anyone can be refused: the newest stay, and what is said of
  // those who know the token longer than what is said of strangers.
  struct Remark {
    std::string text;
    bool is_of_stranger = false;
  };
  std::vector<Remark> remarks;
  // What ends the meeting: that a later attempt at the job has begun.
  std::optional<std::string> superseded{};
  int host = 0;  // its place

  int count() const;                 // of those who are here, the host among them
  int first_missing() const;         // -1: nobody
  std::string missing() const;       // "1, 3"
  std::string remarks_text() const;  // "; first; second"
};

// What the host of a meeting decides for itself.
class HostPolicy {
 public:
  virtual ~HostPolicy() = default;

  virtual std::string self() const = 0;      // "rank 0 of 4 (pid 4711)"
  virtual std::string role() const = 0;      // "rank 0"
  virtual std::string stranger() const = 0;  // "a process"
  virtual int place() const { return 0; }    // its own

  struct Judgement {
    int place = 0;
    std::string name;
    std::optional<std::string> objection;  // why it is not let in
    bool later = false;                    // not yet: it is hung up on, and comes again
  };
  // Of what somebody who knows the token says of itself.
  virtual Judgement judge(const Message& said, const Gathering& gathering) const = 0;
  // Of one that does not know it, and has one or has none.
  virtual std::string why_no_proof(bool has_token) const = 0;

  // Something that the user should see at once.
  virtual void warn(const std::string& text) const = 0;
  // Now and then; throws where there is a reason not to wait any longer.
  virtual void look(Gathering& gathering) = 0;
  // The deadline has passed, nobody else can come, or a later attempt has begun.
  [[noreturn]] virtual void give_up(Gathering& gathering) = 0;
};

// Who receives at a door. Talks to several at once, so that nobody can hold up the others by not
// talking (Note [handshake]).
class Host {
 public:
  // All of it outlives this, but for `pass`.
  Host(Door& door, HostPolicy& policy, Pass pass, int places, const Deadline& deadline);

  // Waits until everyone is here, or the policy throws.
  Gathering run();

  // --- for those who have something else to do meanwhile

  void add_to(std::vector<pollfd>& entries) const;
  // What can be done now.
  void turn();
  Gathering& gathering() { return gathering_; }

 private:
  enum class Of { kStranger, kMember };  // whom a remark is about
  struct Talk {
    std::unique_ptr<Link> link;
    HostingSide side;
    bool challenged = false;
    Deadline patience;
  };

  void wait_and_turn();
  bool accept_one();
  bool goes_on(Talk& talk);
  bool challenge(Talk& talk, const std::string& greeting);
  bool judge(Talk& talk, Message message);
  bool give_way(Talk& talk, const std::string& name);
  bool refuse_stranger(Talk& talk, const std::string& why);
  void forget_lost_guests(const std::vector<pollfd>& entries);
  void remark(Of whom, const std::string& text);
  void warn(Of whom, const std::string& text);

  Door& door_;
  HostPolicy& policy_;
  const Pass pass_;
  Gathering gathering_;
  std::vector<Talk> talks_;
  AcceptPause pause_;
  std::size_t warnings_ = 0;  // of strangers
};

// Waits at the door until `places` - 1 guests are here.
Gathering host_meeting(
    Door& door, HostPolicy& policy, const Pass& pass, int places, const Deadline& deadline);

}  // namespace trireme::detail
