#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::detail {

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// A limit of this process: the one in force, and how far the process may raise it.
struct ProcessLimit {
  std::uint64_t soft = kUnlimited;
  std::uint64_t hard = kUnlimited;
};

struct NetworkInterface {
  std::string name;
  std::string state;          // "up", "down", "unknown" (a bridge, a tunnel)
  int megabits_per_second{};  // 0: the driver does not say
};

// What the kernel says about this machine and this process. What it does not say is 0 or empty.
struct MachineFacts {
  std::string host;
  std::string kernel;
  std::string processor;  // its model
  int online_cpus = 0;
  std::vector<int> allowed_cpus;
  int cpu_quota = 0;  // of the control group, in processors; 0 for none
  std::optional<double> load;
  std::set<std::string> governors;  // of the processors' frequencies
  std::string clock_source;
  std::uint64_t memory_total = 0;
  std::uint64_t memory_available = 0;
  std::uint64_t memory_limit = 0;  // of the control group; 0 for none
  std::uint64_t swap_total = 0;
  std::uint64_t swap_used = 0;
  bool has_shm_folder = false;
  std::uint64_t shm_size = 0;
  std::uint64_t shm_free = 0;
  std::string shared_huge_pages;  // always, within_size, advise, never, deny, force
  ProcessLimit open_files;
  ProcessLimit locked_memory;
  bool has_pidfd = false;
  bool has_rdma = false;
  std::vector<NetworkInterface> interfaces;  // without the loopback
};

// Reads the files of /proc, /sys and /dev below `root`; empty: those of this machine.
MachineFacts read_machine(const std::string& root = "");

// "0-3,8" as 0 1 2 3 8; stops at what it does not understand.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace trireme::detail
