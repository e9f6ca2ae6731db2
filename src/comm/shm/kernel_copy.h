#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Ordinary memory of a rank, read by its peers through the kernel (process_vm_readv): one copy,
// where the stage takes two. The kernel need not allow it (a container, another user, a hardened
// machine), and a process number may mean somebody else in another namespace, so the ranks of a
// machine try it on each other when they meet, and all of them use it or none.

namespace trireme::detail {

// What a process tells its peers, so that they can try.
struct MemoryProbe {
  std::uint64_t process;        // a random number that all threads of this process share
  std::uint64_t pid_namespace;  // 0: not known
  std::uint64_t address;        // of a word in its memory,
  std::uint64_t word;           // and what it says
  std::int32_t pid;
  std::uint32_t wanted;  // 0: switched off
};

// What trying came to, on one rank or, agreed on, on all; texts are empty where it works.
struct KernelCopyReport {
  char why_not[384];
  char remedy[384];
};

// Lets the peers try: keeps the word they read where it is.
class MemoryOffer {
 public:
  explicit MemoryOffer(bool wanted);
  const MemoryProbe& probe() const { return probe_; }

 private:
  std::unique_ptr<std::uint64_t> word_;
  MemoryProbe probe_{};
};

// Reads the words of all peers. `probes` and `world_ranks`, for messages, are by rank.
KernelCopyReport try_kernel_copy(const std::vector<MemoryProbe>& probes,
                                 int rank,
                                 const std::vector<int>& world_ranks);

// The memory of the ranks of a machine, after they have agreed. Switched off by default.
class KernelCopy {
 public:
  KernelCopy() = default;
  KernelCopy(const std::vector<MemoryProbe>& probes, int rank, const KernelCopyReport& agreed);

  bool usable() const { return usable_; }
  // Why it is not, and what would change that.
  const std::string& why_not() const { return why_not_; }
  const std::string& remedy() const { return remedy_; }

  // Copies `bytes` from `address` in the memory of rank `peer`. 0, or an errno value: what has been
  // written to `to` is then of no use.
  int read(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) const;

 private:
  struct Peer {
    std::int32_t pid;
    bool is_this_process;  // ranks that are threads
  };

  bool usable_ = false;
  std::string why_not_;
  std::string remedy_;
  std::vector<Peer> peers_;
};

}  // namespace trireme::detail
