#include "trireme/core/machine.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <unistd.h>

namespace trireme {
namespace {

TEST(Machine, ListsTheProcessorsThisProcessMayUse) {
  const auto cpus = allowed_cpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_LE(static_cast<long>(cpus.size()), sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
}

TEST(Machine, AvailableMemoryIsBelowAllMemory) {
  const std::uint64_t all = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(available_memory_bytes(), 0U);
  EXPECT_LE(available_memory_bytes(), all);
}

}  // namespace
}  // namespace trireme
