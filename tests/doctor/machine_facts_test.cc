#include "doctor/machine_facts.h"

#include <gtest/gtest.h>

#include "doctor/made_up_machine.h"

namespace trireme {
namespace {

using detail::kUnlimited;
using detail::MachineFacts;
using detail::parse_cpu_list;
using detail::read_machine;
using testing::MadeUpMachine;

TEST(CpuList, NamesSingleProcessorsAndRanges) {
  EXPECT_EQ(parse_cpu_list("0-2,5,7-8"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(parse_cpu_list("3"), std::vector<int>{3});
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("all").empty());
}

TEST(MachineFacts, NamesProcessorsThatOnlyHaveNumbers) {
  const MadeUpMachine machine;
  const auto processor = [&](const std::string& maker, const std::string& part) {
    machine.write("/proc/cpuinfo",
                  "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: " + maker +
                      "\nCPU architecture: 8\nCPU part\t: " + part + "\n");
    return read_machine(machine.root()).processor;
  };
  EXPECT_EQ(processor("0x41", "0xd0c"), "Arm Neoverse-N1");
  EXPECT_EQ(processor("0x61", "0x022"), "implementer 0x61, part 0x022");
}

TEST(MachineFacts, ReadsProcessors) {
  const MadeUpMachine machine;
  machine.write("/proc/sys/kernel/hostname", "galley\n");
  machine.write("/proc/sys/kernel/osrelease", "6.1.0-test\n");
  machine.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Oars 3000\n");
  machine.write("/sys/devices/system/cpu/online", "0-7\n");
  machine.write("/proc/self/status", "Name:\tdoctor\nCpus_allowed_list:\t2-3,6\n");
  machine.write("/proc/loadavg", "1.25 0.50 0.10 1/100 4711\n");
  machine.write("/proc/self/cgroup", "0::/jobs/seven\n");
  machine.write("/sys/fs/cgroup/jobs/cpu.max", "250000 100000\n");
  machine.write("/sys/fs/cgroup/jobs/seven/cpu.max", "max 100000\n");
  machine.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  machine.write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
  machine.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  const MachineFacts facts = read_machine(machine.root());
  EXPECT_EQ(facts.host, "galley");
  EXPECT_EQ(facts.kernel, "6.1.0-test");
  EXPECT_EQ(facts.processor, "Oars 3000");
  EXPECT_EQ(facts.online_cpus, 8);
  EXPECT_EQ(facts.allowed_cpus, (std::vector<int>{2, 3, 6}));
  EXPECT_EQ(facts.cpu_quota, 3);  // 2.5 processors, rounded up
  EXPECT_EQ(facts.load, 1.25);
  EXPECT_EQ(facts.governors, (std::set<std::string>{"performance", "powersave"}));
  EXPECT_EQ(facts.clock_source, "hpet");
}

TEST(MachineFacts, ReadsMemory) {
  const MadeUpMachine machine;
  machine.write("/proc/meminfo",
                "MemTotal:       1000000 kB\nMemFree: 5 kB\nMemAvailable:    600000 kB\n"
                "SwapTotal:       200000 kB\nSwapFree:        150000 kB\n");
  machine.write("/proc/self/cgroup", "0::/jobs/seven\n");
  machine.write("/sys/fs/cgroup/jobs/memory.max", "500000000\n");
  machine.write("/sys/fs/cgroup/jobs/memory.current", "100000000\n");
  machine.write("/sys/fs/cgroup/jobs/seven/memory.max", "max\n");
  machine.write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n");
  machine.write("/dev/shm/file", "");
  const MachineFacts facts = read_machine(machine.root());
  EXPECT_EQ(facts.memory_total, 1000000U * 1024);
  EXPECT_EQ(facts.memory_limit, 500000000U);
  EXPECT_EQ(facts.memory_available, 400000000U);  // what the group has left is less than the rest
  EXPECT_EQ(facts.swap_total, 200000U * 1024);
  EXPECT_EQ(facts.swap_used, 50000U * 1024);
  EXPECT_EQ(facts.shared_huge_pages, "advise");
  EXPECT_TRUE(facts.has_shm_folder);
  EXPECT_GT(facts.shm_size, 0U);
}

TEST(MachineFacts, ReadsTheLimitsOfOlderControlGroups) {
  const MadeUpMachine machine;
  machine.write("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 600000 kB\n");
  machine.write("/proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n");
  machine.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000000\n");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n");
  machine.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const MachineFacts facts = read_machine(machine.root());
  EXPECT_EQ(facts.memory_limit, 300000000U);
  EXPECT_EQ(facts.cpu_quota, 2);

  machine.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_machine(machine.root()).memory_limit, 0U);
}

TEST(MachineFacts, ReadsLimitsOfTheProcess) {
  const MadeUpMachine machine;
  machine.write("/proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max open files            1024                 4096                 files     \n"
                "Max locked memory         8388608              unlimited            bytes     \n");
  const MachineFacts facts = read_machine(machine.root());
  EXPECT_EQ(facts.open_files.soft, 1024U);
  EXPECT_EQ(facts.open_files.hard, 4096U);
  EXPECT_EQ(facts.locked_memory.soft, 8388608U);
  EXPECT_EQ(facts.locked_memory.hard, kUnlimited);
}

TEST(MachineFacts, ReadsInterfaces) {
  const MadeUpMachine machine;
  machine.write("/sys/class/net/lo/operstate", "unknown\n");
  machine.write("/sys/class/net/eth1/operstate", "down\n");
  machine.write("/sys/class/net/eth1/speed", "-1\n");
  machine.write("/sys/class/net/eth0/operstate", "up\n");
  machine.write("/sys/class/net/eth0/speed", "25000\n");
  machine.write("/sys/class/infiniband/mlx5_0/fw_ver", "1\n");
  const MachineFacts facts = read_machine(machine.root());
  ASSERT_EQ(facts.interfaces.size(), 2U);
  EXPECT_EQ(facts.interfaces[0].name, "eth0");
  EXPECT_EQ(facts.interfaces[0].megabits_per_second, 25000);
  EXPECT_EQ(facts.interfaces[1].name, "eth1");
  EXPECT_EQ(facts.interfaces[1].state, "down");
  EXPECT_EQ(facts.interfaces[1].megabits_per_second, 0);
  EXPECT_TRUE(facts.has_rdma);
}

TEST(MachineFacts, AreEmptyWhereTheKernelSaysNothing) {
  const MadeUpMachine machine;
  const MachineFacts facts = read_machine(machine.root());
  EXPECT_EQ(facts.host, "");
  EXPECT_TRUE(facts.allowed_cpus.empty());
  EXPECT_FALSE(facts.load.has_value());
  EXPECT_EQ(facts.swap_used, 0U);
  EXPECT_FALSE(facts.has_shm_folder);
  EXPECT_EQ(facts.open_files.soft, kUnlimited);
  EXPECT_TRUE(facts.interfaces.empty());
}

}  // namespace
}  // namespace trireme
