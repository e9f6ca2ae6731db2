#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What `trireme run` and the ranks it starts agree on. Other launchers may set the variables too.

namespace trireme {

// Variables that a launcher sets for each rank.
inline constexpr char kEnvRank[] = "TRIREME_RANK";
inline constexpr char kEnvSize[] = "TRIREME_WORLD_SIZE";
inline constexpr char kEnvLocalRank[] = "TRIREME_LOCAL_RANK";
inline constexpr char kEnvLocalSize[] = "TRIREME_LOCAL_SIZE";
inline constexpr char kEnvJob[] = "TRIREME_JOB";  // names the job; not a secret
// Which attempt at the job this is, from 0, counted by whoever starts its ranks again: rank 0
// refuses ranks of an earlier one, and one of a later ends its meeting.
inline constexpr char kEnvEpoch[] = "TRIREME_EPOCH";
inline constexpr std::int64_t kMostEpoch = std::int64_t{1} << 62;
inline constexpr char kEnvToken[] = "TRIREME_TOKEN";  // proves membership; a secret
// As the token: there is no secret, and anyone who can reach the port may join. Only on request.
inline constexpr char kNoToken[] = "none";
// For the launcher of a job with a store, and not passed on.
inline constexpr char kEnvStoreUser[] = "TRIREME_STORE_USER";
inline constexpr char kEnvStorePassword[] = "TRIREME_STORE_PASSWORD";  // a secret
inline constexpr char kEnvTimeout[] = "TRIREME_TIMEOUT";               // seconds, of every wait
inline constexpr char kEnvLogDir[] = "TRIREME_LOG_DIR";
// Of a job over several machines; the ranks of a machine are consecutive.
inline constexpr char kEnvNodeRank[] = "TRIREME_NODE_RANK";     // which machine
inline constexpr char kEnvNodes[] = "TRIREME_NODES";            // of how many
inline constexpr char kEnvRendezvous[] = "TRIREME_RENDEZVOUS";  // "HOST:PORT": rank 0 listens there
// Rank 0 only: an inherited descriptor that already listens there.
inline constexpr char kEnvRendezvousFd[] = "TRIREME_RENDEZVOUS_FD";
// How ranks talk to each other; not set: the library chooses.
inline constexpr char kEnvInterfaces[] = "TRIREME_INTERFACES";  // "eth0,eth1"
inline constexpr char kEnvBackend[] = "TRIREME_BACKEND";        // auto, shm, ucx or mpi
inline constexpr char kEnvAlgorithm[] = "TRIREME_ALGORITHM";
inline constexpr char kEnvSumGroup[] = "TRIREME_SUM_GROUP";
inline constexpr char kEnvEncrypt[] = "TRIREME_ENCRYPT";      // on or off
inline constexpr char kEnvChecksums[] = "TRIREME_CHECKSUMS";  // on or off
// Whether ranks of a machine read each other's ordinary memory through the kernel: auto or off.
inline constexpr char kEnvKernelCopy[] = "TRIREME_KERNEL_COPY";
// Of an elastic job over several machines: every how many steps its state is also kept by a second
// machine; 0: never.
inline constexpr char kEnvRedundancy[] = "TRIREME_REDUNDANCY";
// Of an elastic job whose number of ranks may change: "on" where what depends on that number is to
// be refused, and not set where the user has allowed it.
inline constexpr char kEnvRanksMayChange[] = "TRIREME_RANKS_MAY_CHANGE";
// Of an elastic job: the descriptor of a socket of packets between a rank and its launcher.
inline constexpr char kEnvMembership[] = "TRIREME_MEMBERSHIP";
// What a rank says there. "next E": its world of epoch E has ended; the launcher answers with its
// EpochPlace in the next one, or "leave", or closes the socket where there will be none. "keep E
// U", with a descriptor: keep this memory of epoch E, for the use U. "kept": answered with all
// descriptors that are kept. "forget E U": those of epochs before E, for that use. The launcher by
// itself says "over", once or more, to ranks of an epoch that has ended (some may still wait for
// others to join it), or that is to end because ranks come or leave; and "lost WHY" where a rank of
// it is lost, on another machine perhaps, so that whoever waits for that rank waits no longer.
inline constexpr char kNextWord[] = "next";
inline constexpr char kKeepWord[] = "keep";
inline constexpr char kKeptWord[] = "kept";
inline constexpr char kForgetWord[] = "forget";
inline constexpr char kOverWord[] = "over";
inline constexpr char kLostWord[] = "lost";
inline constexpr char kLeaveWord[] = "leave";
inline constexpr char kEnvProgramVersion[] = "TRIREME_PROGRAM_VERSION";
// "FD:INODE" of a pipe on which a failing rank writes one FailureReport line.
inline constexpr char kEnvReport[] = "TRIREME_REPORT";

// The backends that have a name: "auto, shm, ucx or mpi".
std::string backend_names();
// Throws ConfigError for a name that none of them has. `where` it was given: "--backend".
void check_backend(const std::string& name, const std::string& where);

// A process that mpirun, srun or torchrun has started as one of several ranks.
struct ForeignRank {
  std::string launcher;  // "srun"
  int rank = 0;
  int size = 1;
  bool one_machine = true;  // all ranks are on this one
};

// What this process is to a launcher other than Trireme's; nothing if it was started alone or by
// Trireme's. Throws ConfigError for variables that make no sense.
std::optional<ForeignRank> foreign_rank();

// A rank's place in an epoch of an elastic job. Rank 0 gets a descriptor with it, which listens at
// the rendezvous, where there is one.
struct EpochPlace {
  std::int64_t epoch = 0;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string rendezvous;  // empty where all ranks are on one machine

  std::string to_text() const;  // "EPOCH RANK SIZE LOCAL_RANK LOCAL_SIZE [HOST:PORT]"
  static std::optional<EpochPlace> parse(const std::string& text);
};

// Why a rank failed, in its own words.
struct FailureReport {
  int rank = -1;
  int blamed = -1;  // the rank that caused the failure; -1 if it is not another rank
  bool rendezvous_timed_out = false;

  std::string to_line() const;  // ends with a newline, shorter than a pipe's atomic write
  static bool parse(const std::string& line, FailureReport* report);
};

}  // namespace trireme
