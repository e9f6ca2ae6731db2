#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.h"

namespace trireme {

// A job that outlives the loss of ranks: it goes on with those that are left, or with others in
// their place.
struct ElasticOptions {
  // Ranks, on all machines together, below which the job ends, and how many there may be. Both 0
  // over several machines: as many as it starts with.
  int least = 1;
  int most = 1;
  // How many ranks, in all, are started again where one was lost or has failed.
  int restarts = 0;
  // How long a rank may be stopped by a signal, or a machine not be heard of, before it counts as
  // lost.
  double heartbeat_seconds = 5;
  // After a loss, how long the others may take to notice before they count as lost, too. The same
  // as LaunchOptions::stall_seconds, which ends ranks in an elastic job.
  double stall_seconds = 60;
  // How long a machine that is asked to end may take to leave the others in good order.
  double grace_seconds = 30;
  // Over several machines: every how many steps the state is also kept by another machine, so that
  // the loss of a whole one is outlived; 0: never. On one machine it means nothing.
  int redundancy = 1;
  // The result may depend on the number of ranks, which may change: what makes it so
  // (SyncBatchNorm, say) is not refused by the ranks.
  bool allow_changes = false;
};

// Faults that are injected into an elastic job (docs/elastic.md).
struct DrillOptions {
  std::string plan;  // "kill:p=0.02;stop:2s;leave"
  std::uint64_t seed = 1;
  std::string file;  // where what happens is recorded
};

// Where the launchers of an elastic job over several machines agree who of them decides, so that
// any machine may be lost (docs/elastic.md).
struct StoreOptions {
  // "etcd://HOST:PORT,HOST:PORT/NAME": members of an etcd, and a name for the job there ("job"
  // where none is given). Empty: no store, and machine 0 decides.
  std::string place;
  // Files in PEM. With any of them the connection is TLS: who may have signed etcd's certificate,
  // and ours where it wants one.
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  // Empty: the variables TRIREME_STORE_USER and TRIREME_STORE_PASSWORD, or none.
  std::string user;
  std::string password_file;  // nobody else may read it
  // What a machine must have as the others have it, to be of the same job. Empty: the command.
  std::string identity;
};

// How to start the ranks of a job on this machine.
struct LaunchOptions {
  std::vector<std::string> command;  // the program and its arguments
  int ranks = 1;                     // on this machine; machines may differ
  // Threads per rank (OMP_NUM_THREADS and the like). Not set: a rank's share of the processors, or
  // what the environment already says.
  std::optional<int> threads;
  // Memory that a rank takes at the very least: a machine that does not have it for all its ranks
  // is spared the attempt (check_launch).
  std::uint64_t rank_bytes = std::uint64_t{8} << 20;
  // A folder for rank-R.log files and flight records; created. Empty: none.
  std::string log_dir;
  // The deadline of every wait inside the job, the rendezvous included. Not set: the library's.
  std::optional<double> timeout_seconds;
  // Give each rank processors of its own if there are enough.
  bool bind = true;
  // Additional variables for every rank, NAME=VALUE.
  std::vector<std::string> environment;
  // Rank 0 speaks for the job: its standard output is the caller's own (a terminal stays one). Else
  // every line is read, labelled with its rank and logged.
  bool rank0_speaks = false;
  // Time to end in good order after a signal, before the ranks are killed.
  double end_seconds = 3;
  bool append_logs = false;  // keep what the files in log_dir already hold
  // How long a rank that trains may make no progress while it waits for nobody: in an elastic job
  // it is lost then, in others it is named.
  double stall_seconds = 60;
  // Not set: whatever ends a rank ends the job. The same on all machines.
  std::optional<ElasticOptions> elastic;
  std::optional<DrillOptions> drill;  // of an elastic job

  // A job over several machines: `launch` is called once on each, with the same `nodes`.
  int nodes = 1;
  int node_rank = 0;  // which machine this is
  // "HOST:PORT" where the launcher of machine 0 listens for the others; HOST is an address of
  // machine 0 or a name of one, an IPv6 address in brackets. Required with several machines.
  // With a store: of this machine, and not required (its address on the way to the store, and a
  // free port).
  std::string rendezvous;
  StoreOptions store;  // of an elastic job
  // A file with the secret that proves who belongs to the job; nobody else may read it. Empty: the
  // variable TRIREME_TOKEN. Without either, launchers are admitted without proof.
  std::string token_file;

  // What the ranks are told about how to talk to each other (launch_protocol.h); empty or not set:
  // the library chooses.
  std::string interfaces;  // "eth0,eth1"
  std::string backend;     // "auto", "shm", "ucx" or "mpi"
  std::string algorithm;
  std::optional<int> sum_group;
  bool encrypt = false;
  bool checksums = false;
};

// Exit codes of `launch`; a job ended by a signal to the launcher gives 128 + its number.
inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRankFailed = 3;
inline constexpr int kExitRendezvousTimedOut = 4;

// Throws ConfigError for what can be seen to be wrong before anything is started or anybody is met,
// which includes a machine, or a control group around this process, that clearly has no room for
// options.ranks: they need more memory or more processes than are left. `launch` asks, too.
void check_launch(const LaunchOptions& options);

// Starts the ranks, prints their output line by line with the rank in front, forwards signals,
// and returns when all have ended. When one fails the others are ended too, unless the job is
// elastic, and it is named with its last words. Leaves no process behind, whatever the ranks start;
// the ranks die with the calling process. Children that the process had before are left alone, and
// so is what those leave behind; it must not start others in its first thread meanwhile. Throws
// ConfigError for options that make no sense or a program that cannot be started. Not thread-safe:
// takes over the signals of the process while it runs.
//
// With several machines it first meets the launchers of the others, and then returns when the ranks
// of all machines have ended: 0 only if all succeeded. What ends the job on one machine ends it on
// all, and all name the same cause. A machine that is not admitted throws ConfigError.
int launch(const LaunchOptions& options);

// How ranks communicate, as `launch` tells them in their environment (NAME=VALUE), for ranks that
// another launcher has started: interfaces, backend, algorithm, sum group, encryption, checksums.
std::vector<std::string> communication_variables(const LaunchOptions& options);

// The store does not answer in time, as the next time it may: kExitRendezvousTimedOut.
class StoreDoesNotAnswer : public Error {
 public:
  using Error::Error;
};

// Whether options.store already knows this job, which has begun, so that this machine would join
// it. Throws ConfigError where the store is wrong, StoreDoesNotAnswer after timeout_seconds.
bool has_begun(const LaunchOptions& options);

// Asks the launcher of an elastic job of the same user, by its process number. "scale N": go on
// with N ranks after the step at hand. Returns what will happen, or "no: " and why not. Throws
// ConfigError where there is no such launcher.
std::string ask_job(int launcher, const std::string& request);

}  // namespace trireme
