#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What this process may use of the machine, containers' limits included. `root` is put before
// /proc and /sys, for made-up machines.

namespace trireme {

// The processors this process may run on, ascending.
std::vector<int> allowed_cpus();

// How many processors this machine, or the container, has for a process that is not bound to some
// of them, as ranks are.
int machine_cpus();

// Processors' worth of time the control group grants (docker --cpus), rounded up; 0 for no limit.
int cpu_quota(const std::string& root = "");

// Bytes that can still be allocated before the kernel would have to kill something: free memory of
// the machine or of the tightest control group above this process, whichever is less. Page cache
// that can be dropped is free.
std::uint64_t available_memory_bytes(const std::string& root = "");

// Bytes that this process could ever have: the machine's memory, or less where a control group
// above it has a limit.
std::uint64_t total_memory_bytes(const std::string& root = "");

// Bytes that the tightest control group above this process lets it have; 0 for no limit.
std::uint64_t memory_quota_bytes(const std::string& root = "");

// How many more processes this one may start, by the tightest control group above it (pids.max, as
// docker --pids-limit sets it), by the user's limit (ulimit -u, which is one for all of the user's
// processes) and by the machine's; all of these count threads as well. `limit` gets the name of the
// tightest.
std::uint64_t available_processes(std::string* limit = nullptr, const std::string& root = "");

}  // namespace trireme
