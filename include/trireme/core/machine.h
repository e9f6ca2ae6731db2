#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What this process may use of the machine, containers' limits included. `root` is put before
// /proc and /sys, for made-up machines.

namespace trireme {

// The processors this process may run on, ascending.
std::vector<int> allowed_cpus();

// Processors' worth of time the control group grants (docker --cpus), rounded up; 0 for no limit.
int cpu_quota(const std::string& root = "");

// Bytes that can still be allocated before the kernel would have to kill something: free memory of
// the machine or of the tightest control group above this process, whichever is less. Page cache
// that can be dropped is free.
std::uint64_t available_memory_bytes(const std::string& root = "");

// Bytes that the tightest control group above this process lets it have; 0 for no limit.
std::uint64_t memory_quota_bytes(const std::string& root = "");

}  // namespace trireme
