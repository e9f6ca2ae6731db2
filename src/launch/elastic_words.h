#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/job_event.h"
#include "trireme/core/world_history.h"

// What the launchers of an elastic job tell each other of its epochs: machines how their ranks are,
// machine 0 what is to be done.

namespace trireme::detail {

// How far ranks have come, as WorldHistory has it.
struct Reached {
  std::int64_t begun = 0;
  std::int64_t again = 0;

  bool operator==(const Reached&) const = default;
  void raise(const Reached& other) {
    begun = std::max(begun, other.begun);
    again = std::max(again, other.again);
  }
};

// How the ranks of a machine are, in an epoch.
struct MachineStatus {
  std::int64_t epoch = 0;
  int members = 0;        // ranks of the epoch that run
  bool asks = false;      // one of them asks for its place in the next
  bool ready = true;      // all of them do
  bool finished = false;  // one has come to its end
  bool keeps = false;     // memory is kept
  std::int64_t kept = 0;  // how often there was news of memory
  Reached reached{};      // where they are ready

  bool operator==(const MachineStatus&) const = default;
};

// An epoch that begins.
struct EpochOrder {
  std::int64_t epoch = 0;
  std::vector<int> ranks{};   // of each machine
  std::vector<int> starts{};  // of these, how many processes each machine starts
  std::string rendezvous{};   // "HOST:PORT" of rank 0; empty where the job has one machine
  RankCounts counts{};        // with the change that leads to it
  Reached reached{};          // in those before it

  int world_size() const;
  int first_rank(int machine) const;
};

// What a leader that leaves hands over when all ranks wait for the next epoch: what became of the
// others since the last one began, and how many wait on each machine.
struct Rest {
  int lost = 0;
  int left = 0;
  std::vector<int> ranks{};
};
std::string pack_rest(const Rest& rest);
bool unpack_rest(const std::string& bytes, Rest* rest);

// An epoch that ends, or has ended.
struct EpochEnd {
  std::int64_t epoch = 0;
  bool lost = false;  // a rank is: nobody is to wait for it. Else after the step at hand
  std::string why;
};

std::string pack_status(const MachineStatus& status);
bool unpack_status(const std::string& bytes, MachineStatus* status);
// What has failed, and how the ranks are without it: one message, or machine 0 would see a machine
// with fewer ranks and not know why.
struct MachineLoss {
  MachineStatus status;
  std::vector<JobEvent> failures;
};
std::string pack_loss(const MachineLoss& loss);
bool unpack_loss(const std::string& bytes, MachineLoss* loss);
std::string pack_order(const EpochOrder& order);
bool unpack_order(const std::string& bytes, EpochOrder* order);
std::string pack_end(const EpochEnd& end);
bool unpack_end(const std::string& bytes, EpochEnd* end);

}  // namespace trireme::detail
