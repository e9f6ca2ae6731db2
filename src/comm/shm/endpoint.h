#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include "comm/shm/control.h"
#include "comm/shm/membership.h"
#include "device/driver.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// One rank's place in the shared memory of its machine: what it can see of its peers, and how it
// tells them that something has happened. Knows nothing of particular collectives.
class Endpoint {
 public:
  explicit Endpoint(Membership membership);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint();  // leaves, where it has not

  int rank() const { return membership_.rank; }
  int size() const { return membership_.size; }
  int sum_group() const { return membership_.sum_group; }
  const Control& control() const { return control_; }
  RankBlock& self() const { return control_.rank(rank()); }
  std::uint32_t first_count() const { return control_.header().first_count; }
  // What the control memory calls collective `number`, which counts from 1: it wraps around.
  std::uint32_t sequence_of(std::uint64_t number) const {
    return first_count() + static_cast<std::uint32_t>(number);
  }
  // In good order: the end of this rank is then no failure. What it has lent can still be read.
  void leave();
  // A copy that fork made: it must not act for the rank.
  bool in_forked_child() const { return getpid() != owner_; }
  int world_rank(int peer) const { return membership_.world_ranks[static_cast<std::size_t>(peer)]; }

  // --- telling and watching; see Note [doorbells] in endpoint.cc

  void ring(int peer) const;
  void ring_all() const;
  // Rings the sleeping peers if every rank has issued operation `sequence`, or reached `phase`.
  void ring_if_all_issued(std::uint32_t sequence) const;
  void ring_if_all_at(std::uint32_t phase) const;
  void sleep_on_bell(std::uint32_t seen, int milliseconds) const;

  bool issued(int peer, std::uint32_t sequence) const {
    return control_.slot(peer, sequence).sequence.load(std::memory_order_seq_cst) == sequence;
  }
  bool at_phase(int peer, std::uint32_t phase) const {
    return reached(control_.rank(peer).phase.load(std::memory_order_seq_cst), phase);
  }
  bool completed(int peer, std::uint32_t sequence) const {
    return reached(control_.rank(peer).completed.load(std::memory_order_seq_cst), sequence);
  }

  // --- who is there

  bool has_ended(int peer) const;  // its process is gone
  bool has_left(int peer) const { return control_.rank(peer).left.load() != 0; }
  // "rank 2 (pid 4711)"; and with what the kernel says of it: "rank 2 (pid 4711, ended)".
  std::string plain_name(int peer) const;
  std::string name(int peer) const;
  const std::vector<std::unique_ptr<Link>>& links() const { return membership_.links; }
  // True as long as nothing has happened to these ranks, nor to the world, that would have let them
  // give up or change what they had lent. Whoever asks after a copy knows that it was good.
  bool are_undisturbed(const std::vector<int>& peers) const;

  // --- ordinary memory of peers

  const KernelCopy& kernel_copy() const { return membership_.kernel_copy; }
  // What to throw where reading it failed and the peer is alive; `error` is an errno value.
  CommError unreadable(int peer, int error) const;

  // --- shared buffers

  // `begins`: of each rank's part, and the end of the last.
  void add_buffer(std::uint32_t id,
                  std::shared_ptr<device::Mapping> mapping,
                  std::vector<std::size_t> begins);
  void remove_buffer(std::uint32_t id);
  // Finds the shared buffer that holds [data, data + bytes) of this rank; false when none does.
  bool locate(const std::byte* data,
              std::size_t bytes,
              std::uint32_t* id,
              std::uint64_t* offset) const;
  // Byte `offset` of rank `peer`'s part of buffer `id`. Throws ConfigError when this rank has
  // dropped the buffer that a peer still uses.
  std::byte* resolve(int peer, std::uint32_t id, std::uint64_t offset) const;

  // Sequence numbers wrap: `reached` compares them on the circle.
  static bool reached(std::uint32_t value, std::uint32_t target) {
    return static_cast<std::int32_t>(value - target) >= 0;
  }

 private:
  struct Buffer {
    std::shared_ptr<device::Mapping> mapping;
    std::vector<std::size_t> begins;
  };

  const pid_t owner_;  // the process that built it
  Membership membership_;
  std::shared_ptr<device::Mapping> memory_;
  Control control_;
  mutable std::mutex buffers_mutex_;
  std::map<std::uint32_t, Buffer> buffers_;  // guarded by buffers_mutex_
};

}  // namespace trireme::detail
