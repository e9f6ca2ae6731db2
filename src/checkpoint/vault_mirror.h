#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "checkpoint/vault_segment.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// Copies of the ranks' versions in the memory of another machine each: that of machine m is with
// m + 1, that of the last with the first. A rank of m sends what it has saved to one rank there,
// which keeps it under the name of the one it is of, so that it is found as if that had kept it.
//
// The version goes while the next step is computed, by a thread and a communicator of its own, and
// from and to the memory where it stays: nothing is copied for it.
class VaultMirror {
 public:
  // Collective.
  explicit VaultMirror(World& world);
  VaultMirror(const VaultMirror&) = delete;
  VaultMirror& operator=(const VaultMirror&) = delete;
  // Waits for what is under way, or for the end of the world.
  ~VaultMirror();

  // Tells how long this rank's versions are; returns how long those are that it keeps copies of.
  // Collective.
  std::vector<VaultLayout> exchange(const VaultLayout& mine);
  // Memory for them, beside what there is for versions of other forms. Throws MemoryError.
  void make_room(std::int64_t epoch, std::int64_t use, const std::vector<VaultLayout>& theirs);
  // The next version is of the form for which room was made as the k-th.
  void take_room(std::size_t k) { kept_ = rooms_[k]; }

  // The version of `step` goes on its way. The place of it is not to be written before `wait`.
  void start(std::shared_ptr<VaultSegment> own, std::int64_t step);
  // All that this rank sends and keeps has come. Throws CommError.
  void wait();

 private:
  void exchange_version(const VaultSegment& own, std::int64_t step);

  std::shared_ptr<Communicator> group_;  // all ranks, with an order of operations of its own
  int to_ = 0;
  std::vector<int> from_;
  using Room = std::vector<std::shared_ptr<VaultSegment>>;
  std::vector<Room> rooms_;  // one for each form
  Room kept_;                // of those
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace trireme::detail
