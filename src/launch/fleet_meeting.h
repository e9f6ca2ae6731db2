#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>

#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/net_socket.h"
#include "launch/launcher_link.h"
#include "launch/signal_watch.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

// How the launchers of a job's machines come together: the one that leads listens, the others
// connect. Machine 0 leads, or whom the store names (Note [leading] in leadership.h).

namespace trireme::detail {

// What a meeting of launchers has to do with the store.
struct MeetingStore {
  std::string job;               // its name
  std::int64_t generation = 1;   // of the leader
  std::vector<int> ranks;        // of each machine when the job began; empty: it has not
  int door = -1;                 // where this machine listens, if it leads
  std::function<void()> look{};  // throws LeaderChanged
  std::function<void(const std::vector<int>& ranks)> begin{};  // the job does; or LeaderChanged
};

// The store names another leader, or none: whoever meets has to ask it again.
class LeaderChanged : public Error {
 public:
  LeaderChanged() : Error("the store names another leader") {}
};

struct MeetingOptions {
  int machine = 0;
  int machines = 2;
  int leader = 0;          // the machine that listens
  int ranks = 1;           // on this machine
  Milliseconds lease{0};   // of an elastic job (Note [leases] in fleet_lease.cc); 0: it is none
  int listener_port = 0;   // of an elastic job: where rank 0 would listen if it were here
  bool encrypt = false;    // what ranks send each other
  std::int64_t epoch = 0;  // the attempt at the job
  std::string drill;       // of machine 0, for all
  std::string world;       // that this machine was in last, as pack_order has it; empty: none
  MeetingPlace place;
  std::vector<SocketAddress> addresses;  // of `place`
  const MeetingStore* store = nullptr;
  std::string secret;  // empty: none
  Milliseconds timeout{};
  const SignalWatch* signals = nullptr;
  std::function<void(const std::string&)> say;  // to whoever started this launcher

  std::string leader_name() const { return concat("machine ", leader); }
  double timeout_seconds() const { return std::chrono::duration<double>(timeout).count(); }
  Pass pass() const { return {"launcher", "", epoch, secret}; }
};

// What a launcher says about itself.
struct MachineHello {
  std::string library;  // the version of Trireme
  int machine = 0;
  int machines = 1;
  int ranks = 1;
  int pid = -1;
  std::string host;  // its name, for messages
  Milliseconds lease{0};
  int listener_port = 0;
  bool encrypt = false;
  std::string world;

  // "machine 1 (host), pid 4711".
  std::string name() const;
};

// The leader of an elastic job that has begun: lets in machines that come, or come back.
class Reception {
 public:
  virtual ~Reception() = default;
  virtual void add_to(std::vector<pollfd>& entries) const = 0;
  struct Arrival {
    MachineHello hello;
    std::string listener;  // "HOST:PORT"
    std::unique_ptr<Link> link;
  };
  // Those who have been let in since the last call. `presence`: of a machine now; who is not sure
  // yet says kSilent, and is asked again when the one that has come tries again.
  enum class Presence { kAbsent, kSilent, kHere };
  virtual std::vector<Arrival> turn(const std::function<Presence(int machine)>& presence) = 0;
};

// Who belongs to the job, and what all of them agree on.
struct Roster {
  std::string job;
  std::string token;                   // of the ranks; random or made from the secret
  std::vector<int> ranks;              // of each machine
  std::vector<std::string> hosts;      // their names
  int machine = 0;                     // this one
  int leader = 0;                      // the one that decides
  std::int64_t generation = 0;         // of that leader, where a store has named it
  bool has_begun = false;              // with another leader
  std::string rendezvous;              // "HOST:PORT" where rank 0 will listen
  FileDescriptor rank0_listener;       // machine 0 only, without a store
  bool joins = false;                  // the job has begun: this machine waits for the next epoch
  std::string drill;                   // what machine 0 drills; empty: nothing
  std::vector<std::string> listeners;  // the leader of an elastic job: by machine, "HOST:PORT"
  // By machine: the leader has one to each, the others one to it; the rest is closed.
  std::vector<std::unique_ptr<Link>> links;
  std::unique_ptr<Reception> reception;  // the leader of an elastic job only

  int first_rank() const;
  int world_size() const;
  int machine_of(int rank) const;
  std::string name_of(int machine) const;  // "machine 1 (host)"
};

// There will be no job; `code` is the exit code for that.
class MeetingFailed : public Error {
 public:
  MeetingFailed(int code, const std::string& message) : Error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Blocks until everyone is here, the deadline passes or a signal comes. Throws MeetingFailed, and
// ConfigError where this machine is not admitted or cannot listen.
Roster meet_launchers(const MeetingOptions& options);

// The two sides of it.
Roster host_launchers(const MeetingOptions& options);
Roster join_launchers(const MeetingOptions& options);

std::string host_name();  // of this machine
MachineHello make_machine_hello(const MeetingOptions& options);
std::string pack_hello(const MachineHello& hello);
bool unpack_hello(const std::string& bytes, MachineHello* hello);

// What the leader tells everyone when all are here, or who comes later (kStart). Of the roster only
// what all share; the token only where it cannot be made from a secret.
std::string pack_start(const Roster& roster, int rank0_port, bool with_token);
bool unpack_start(const std::string& bytes, Roster* roster, int* rank0_port);

// What it tells them when there will be no job (kCancelled).
std::string pack_cancellation(const MeetingFailed& failure);
MeetingFailed unpack_cancellation(const std::string& bytes);

// A signal that asks to end, 0 when there was none. Takes the others off, and stops where asked.
int take_ending_signal(const SignalWatch& signals);
MeetingFailed stopped_by_signal(int number);

}  // namespace trireme::detail
