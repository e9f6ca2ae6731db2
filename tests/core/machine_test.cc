#include "trireme/core/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "support/foreign_locale.h"
#include "support/processes.h"

namespace trireme {
namespace {

TEST(Machine, ListsTheProcessorsThisProcessMayUse) {
  const auto cpus = allowed_cpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_LE(static_cast<long>(cpus.size()), sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
}

// Ranks are bound to a few processors each, and are on the same machine all the same.
TEST(Machine, HasAsManyProcessorsForAProcessThatIsBoundToOne) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int all = machine_cpus();
  EXPECT_GE(all, CPU_COUNT(&before));
  EXPECT_LE(all, sysconf(_SC_NPROCESSORS_CONF));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(allowed_cpus().front()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(machine_cpus(), all);
  EXPECT_EQ(allowed_cpus().size(), 1U) << "asking has changed it";
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(Machine, AvailableMemoryIsBelowAllMemory) {
  const std::uint64_t all = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(available_memory_bytes(), 0U);
  EXPECT_LE(available_memory_bytes(), all);
}

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

// A machine with 8 GiB to spare and a control group whose limit of 1 GiB is full but for 4 MiB: 90
// MiB are a program's own, 30 MiB cache in use, 900 MiB cache that nobody has used lately.
class FullGroup : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLimit = 1024 * kMebibyte;
  static constexpr std::uint64_t kUsage = 1020 * kMebibyte;
  static constexpr std::uint64_t kDroppable = 900 * kMebibyte;

  FullGroup() { write("/proc/meminfo", "MemAvailable:   8388608 kB\n"); }

  const std::string& root() const { return folder_.path(); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root() + path).parent_path());
    std::ofstream(root() + path) << text;
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(FullGroup, OfPageCacheHasRoom) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", std::to_string(kLimit) + "\n");
  write("/sys/fs/cgroup/memory.current", std::to_string(kUsage) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), kLimit - kUsage) << "no statistics: nothing is known";
  write("/sys/fs/cgroup/memory.stat",
        "anon " + std::to_string(90 * kMebibyte) + "\nfile " + std::to_string(930 * kMebibyte) +
            "\ninactive_file_pages 7\ninactive_file " + std::to_string(kDroppable) +
            "\nactive_file " + std::to_string(30 * kMebibyte) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), kLimit - kUsage + kDroppable);
  write("/sys/fs/cgroup/memory.stat", "inactive_file " + std::to_string(2 * kUsage) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), kLimit) << "never more than the limit";
}

TEST_F(FullGroup, CanHaveNoMoreThanItsLimitOrTheMachine) {
  write("/proc/meminfo", "MemTotal:   16777216 kB\nMemAvailable:   8388608 kB\n");
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(total_memory_bytes(root()), 16384 * kMebibyte);
  write("/sys/fs/cgroup/memory.max", std::to_string(kLimit) + "\n");
  EXPECT_EQ(total_memory_bytes(root()), kLimit);
  write("/sys/fs/cgroup/memory.max", std::to_string(std::uint64_t{1} << 40) + "\n");
  EXPECT_EQ(total_memory_bytes(root()), 16384 * kMebibyte);
}

TEST_F(FullGroup, HasRoomForAsManyProcessesAsItsTightestLimit) {
  std::string limit;
  write("/proc/self/cgroup", "0::/outer/inner\n");
  EXPECT_GT(available_processes(&limit, root()), 1'000'000'000U) << "no limit at all";
  EXPECT_EQ(limit, "");
  write("/proc/sys/kernel/pid_max", "4194304\n");
  write("/proc/sys/kernel/threads-max", "5000\n");
  EXPECT_EQ(available_processes(&limit, root()), 5000U);
  EXPECT_EQ(limit, "/proc/sys/kernel/threads-max");
  write("/sys/fs/cgroup/outer/inner/pids.max", "max\n");
  write("/sys/fs/cgroup/outer/inner/pids.current", "3\n");
  write("/sys/fs/cgroup/outer/pids.max", "100\n");
  write("/sys/fs/cgroup/outer/pids.current", "40\n");
  EXPECT_EQ(available_processes(&limit, root()), 60U);
  EXPECT_NE(limit.find("pids.max"), std::string::npos) << limit;
  write("/sys/fs/cgroup/outer/pids.current", "400\n");
  EXPECT_EQ(available_processes(nullptr, root()), 0U);
  write("/proc/self/cgroup", "7:pids:/job\n0::/\n");  // of the older kind
  write("/sys/fs/cgroup/pids/job/pids.max", "20\n");
  write("/sys/fs/cgroup/pids/job/pids.current", "5\n");
  EXPECT_EQ(available_processes(nullptr, root()), 15U);
}

TEST(Machine, IsReadTheSameInEveryLocale) {
  const testing::TemporaryFolder folder;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder.path() + path).parent_path());
    std::ofstream(folder.path() + path) << text;
  };
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  const testing::ForeignLocale foreign(' ');  // as in France, where 250 000 is one number
  EXPECT_EQ(cpu_quota(folder.path()), 3);     // 2.5 processors, rounded up
}

TEST_F(FullGroup, OfTheOlderKindHasRoomToo) {
  write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  const std::string group = "/sys/fs/cgroup/memory/job";
  write(group + "/memory.limit_in_bytes", std::to_string(kLimit) + "\n");
  write(group + "/memory.usage_in_bytes", std::to_string(kUsage) + "\n");
  // Its own pages are few: most are of groups below, which count towards the same limit.
  write(group + "/memory.stat",
        "inactive_file 4096\ntotal_inactive_file " + std::to_string(kDroppable) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), kLimit - kUsage + kDroppable);
}

}  // namespace
}  // namespace trireme
