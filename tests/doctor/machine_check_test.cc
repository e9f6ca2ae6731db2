#include "doctor/machine_check.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "doctor/gpu_check.h"

namespace trireme {
namespace {

using detail::check_machine;
using detail::check_versions;
using detail::Finding;
using detail::MachineFacts;
using detail::Purpose;
using detail::Verdict;
using detail::Versions;

constexpr std::uint64_t kGibibyte = 1 << 30;

// Four processors, idle, with nothing to complain about.
MachineFacts good_machine() {
  MachineFacts facts;
  facts.online_cpus = 4;
  facts.allowed_cpus = {0, 1, 2, 3};
  facts.load = 0.1;
  facts.governors = {"performance"};
  facts.clock_source = "tsc";
  facts.memory_total = 16 * kGibibyte;
  facts.memory_available = 12 * kGibibyte;
  facts.has_shm_folder = true;
  facts.shm_size = 8 * kGibibyte;
  facts.shm_free = 8 * kGibibyte;
  facts.shared_huge_pages = "advise";
  facts.open_files = {65536, 65536};
  facts.has_pidfd = true;
  facts.interfaces = {{"eth0", "up", 10000}, {"eth1", "down", 0}};
  return facts;
}

Purpose ranks(int count) {
  Purpose purpose;
  purpose.ranks = count;
  return purpose;
}

Finding named(const std::vector<Finding>& findings, const std::string& check) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.check == check;
  });
  EXPECT_NE(found, findings.end()) << check;
  return found == findings.end() ? Finding{} : *found;
}

Finding checked(const MachineFacts& facts, const Purpose& purpose, const std::string& check) {
  return named(check_machine(facts, purpose), check);
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MachineCheck, HasNothingToSayAboutAGoodMachine) {
  const auto findings = check_machine(good_machine(), ranks(4));
  EXPECT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.value;
    EXPECT_EQ(finding.advice, "") << finding.check;
  }
}

TEST(MachineCheck, EveryFindingThatIsNotOkSaysWhatToChange) {
  int not_ok = 0;
  for (const Finding& finding : check_machine(MachineFacts{}, ranks(100))) {
    EXPECT_EQ(finding.advice.empty(), finding.verdict == Verdict::kOk) << finding.check;
    not_ok += finding.verdict == Verdict::kOk ? 0 : 1;
  }
  EXPECT_GT(not_ok, 0);
}

TEST(MachineCheck, RanksMayNotOutnumberProcessors) {
  const Finding finding = checked(good_machine(), ranks(5), "processors");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_TRUE(says(finding.advice, "at most 4 ranks")) << finding.advice;
}

TEST(MachineCheck, ProcessorsAreWhatAffinityAndQuotaLeave) {
  MachineFacts facts = good_machine();
  facts.cpu_quota = 2;
  Finding finding = checked(facts, ranks(2), "processors");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.numbers.at("usable"), 2);
  EXPECT_EQ(checked(facts, ranks(3), "processors").verdict, Verdict::kWarning);

  facts = good_machine();
  facts.online_cpus = 16;
  finding = checked(facts, ranks(4), "processors");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.numbers.at("usable"), 4);
}

TEST(MachineCheck, ThreadsAreTheShareOfARank) {
  for (const int count : {1, 2, 3, 4}) {
    const Finding finding = checked(good_machine(), ranks(count), "threads");
    EXPECT_EQ(finding.numbers.at("per_rank"), 4 / count);
    EXPECT_EQ(finding.verdict, Verdict::kOk);
  }
}

TEST(MachineCheck, ThreadsOfTheEnvironmentMayNotOutnumberProcessors) {
  Purpose purpose = ranks(2);
  purpose.omp_threads = 2;
  EXPECT_EQ(checked(good_machine(), purpose, "threads").verdict, Verdict::kOk);
  purpose.omp_threads = 3;
  const Finding finding = checked(good_machine(), purpose, "threads");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_TRUE(says(finding.advice, "set it to 2")) << finding.advice;
  EXPECT_TRUE(says(finding.advice, "6 threads on 4")) << finding.advice;
  purpose.omp_threads = 1;
  EXPECT_EQ(checked(good_machine(), purpose, "threads").verdict, Verdict::kNote);
}

TEST(MachineCheck, ABusyMachineIsNamed) {
  MachineFacts facts = good_machine();
  facts.load = 2.0;
  EXPECT_EQ(checked(facts, ranks(1), "load").verdict, Verdict::kOk);
  facts.load = 2.1;
  EXPECT_EQ(checked(facts, ranks(1), "load").verdict, Verdict::kWarning);
}

TEST(MachineCheck, SlowProcessorsAndClocksAreNamed) {
  MachineFacts facts = good_machine();
  facts.governors = {"powersave"};
  facts.clock_source = "hpet";
  EXPECT_EQ(checked(facts, ranks(1), "frequency").verdict, Verdict::kNote);
  EXPECT_EQ(checked(facts, ranks(1), "clock source").verdict, Verdict::kWarning);
  facts.governors = {"ondemand", "performance"};
  EXPECT_EQ(checked(facts, ranks(1), "frequency").verdict, Verdict::kNote);
}

TEST(MachineCheck, MemoryCountsWithItsLimit) {
  MachineFacts facts = good_machine();
  facts.memory_limit = 4 * kGibibyte;
  facts.memory_available = 3 * kGibibyte;
  EXPECT_EQ(checked(facts, ranks(1), "memory").verdict, Verdict::kNote);
  facts.memory_available = kGibibyte / 2;
  EXPECT_EQ(checked(facts, ranks(1), "memory").verdict, Verdict::kWarning);
  facts.memory_limit = 32 * kGibibyte;  // more than there is: no limit
  facts.memory_available = 3 * kGibibyte;
  EXPECT_EQ(checked(facts, ranks(1), "memory").verdict, Verdict::kOk);
}

TEST(MachineCheck, SwapMattersWhenItIsUsed) {
  MachineFacts facts = good_machine();
  facts.swap_total = kGibibyte;
  EXPECT_EQ(checked(facts, ranks(1), "swap").verdict, Verdict::kOk);
  facts.swap_used = kGibibyte / 2;
  EXPECT_EQ(checked(facts, ranks(1), "swap").verdict, Verdict::kWarning);
}

TEST(MachineCheck, SharedMemoryOfOthersIsANote) {
  MachineFacts facts = good_machine();
  facts.shm_size = facts.shm_free = 64 << 20;  // a container's
  EXPECT_EQ(checked(facts, ranks(1), "/dev/shm").verdict, Verdict::kNote);
  facts.has_shm_folder = false;
  EXPECT_EQ(checked(facts, ranks(1), "/dev/shm").verdict, Verdict::kNote);
  facts.shared_huge_pages = "never";
  EXPECT_EQ(checked(facts, ranks(1), "huge pages").verdict, Verdict::kNote);
}

TEST(MachineCheck, OpenFilesMustDoForTheRanks) {
  MachineFacts facts = good_machine();
  facts.open_files = {256, 332};  // 100 ranks with three pipes each, and 32 others
  EXPECT_EQ(checked(facts, ranks(100), "open files").verdict, Verdict::kNote);
  EXPECT_EQ(checked(facts, ranks(101), "open files").verdict, Verdict::kProblem);
}

TEST(MachineCheck, LockedMemoryMattersWithRdma) {
  MachineFacts facts = good_machine();
  facts.locked_memory = {8 << 20, 8 << 20};
  EXPECT_EQ(checked(facts, ranks(1), "locked memory").verdict, Verdict::kOk);
  facts.has_rdma = true;
  EXPECT_EQ(checked(facts, ranks(1), "locked memory").verdict, Verdict::kWarning);
}

TEST(MachineCheck, WithoutPidfdNothingWorks) {
  MachineFacts facts = good_machine();
  facts.has_pidfd = false;
  EXPECT_EQ(checked(facts, ranks(1), "pidfd").verdict, Verdict::kProblem);
}

TEST(MachineCheck, InterfacesThatAreAskedForMustBeThereAndUp) {
  Purpose purpose = ranks(1);
  purpose.interfaces = {"eth0"};
  EXPECT_EQ(checked(good_machine(), purpose, "interfaces").verdict, Verdict::kOk);
  purpose.interfaces = {"eth0", "eth1"};
  Finding finding = checked(good_machine(), purpose, "interfaces");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_TRUE(says(finding.advice, "eth1")) << finding.advice;
  purpose.interfaces = {"eth7"};
  finding = checked(good_machine(), purpose, "interfaces");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_TRUE(says(finding.value, "eth7")) << finding.value;
  EXPECT_TRUE(says(finding.advice, "eth0, eth1")) << finding.advice;
}

TEST(VersionCheck, UcxIsNeededBetweenMachines) {
  Versions versions;
  versions.trireme = "1";
  versions.open_mpi = "4";
  Purpose purpose;
  const auto verdict = [&] { return named(check_versions(versions, "6", purpose), "ucx").verdict; };
  EXPECT_EQ(verdict(), Verdict::kNote);
  purpose.machines = 2;
  EXPECT_EQ(verdict(), Verdict::kProblem);
  purpose.backend = "mpi";
  EXPECT_EQ(verdict(), Verdict::kNote);
  versions.ucx = "1.13.1";
  EXPECT_EQ(verdict(), Verdict::kOk);
}

TEST(VersionCheck, MpiIsNeededWhereItIsAskedFor) {
  Versions versions;
  Purpose purpose;
  EXPECT_EQ(named(check_versions(versions, "6", purpose), "open mpi").verdict, Verdict::kOk);
  purpose.backend = "mpi";
  EXPECT_EQ(named(check_versions(versions, "6", purpose), "open mpi").verdict, Verdict::kProblem);
  versions.mpich = "4";
  versions.mpich_module = true;
  EXPECT_EQ(named(check_versions(versions, "6", purpose), "open mpi").verdict, Verdict::kOk);
  // An MPI that Trireme was built without.
  versions.mpich_module = false;
  const Finding found = named(check_versions(versions, "6", purpose), "mpich");
  EXPECT_EQ(found.verdict, Verdict::kProblem);
  EXPECT_TRUE(says(found.advice, "build Trireme")) << found.advice;
}

// It takes an mpirun and Trireme's module for the MPI that this one is of.
TEST(VersionCheck, MpiIsAdvisedWhereItWorks) {
  Purpose two_machines;
  two_machines.machines = 2;
  const auto advice = [&](const Versions& versions) {
    return named(check_versions(versions, "6", two_machines), "ucx").advice;
  };
  Versions versions;
  const auto advises = [&] { return says(advice(versions), "--backend mpi"); };
  EXPECT_FALSE(advises());
  versions.open_mpi = "4";
  EXPECT_FALSE(advises()) << "without a module";
  versions.mpich_module = true;
  EXPECT_FALSE(advises()) << "a module for another MPI";
  versions.open_mpi_module = true;
  EXPECT_TRUE(advises());
  EXPECT_TRUE(says(advice(versions), "mpirun")) << "trireme's own launcher does not start MPI";
  versions.open_mpi.clear();
  EXPECT_FALSE(advises()) << "without mpirun";
}

TEST(VersionCheck, ATrainingProgramThatDoesNotStartIsAProblem) {
  Versions versions;
  EXPECT_EQ(named(check_versions(versions, "6", {}), "libtorch").verdict, Verdict::kNote);
  versions.libtorch = "2.11.0";
  EXPECT_EQ(named(check_versions(versions, "6", {}), "libtorch").verdict, Verdict::kOk);
  versions.worker_trouble = "libc10.so is missing";
  const Finding finding = named(check_versions(versions, "6", {}), "libtorch");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_TRUE(says(finding.value, versions.worker_trouble)) << finding.value;
}

TEST(VersionCheck, SaysWhetherSixteenBitsSaveTime) {
  Versions versions;
  versions.libtorch = "2.11.0";
  const auto found = [&] { return named(check_versions(versions, "6", {}), "16-bit speed"); };
  EXPECT_EQ(found().value, "not known");
  detail::parse_precisions("bfloat16 0.5 float16 30\n", versions);
  Finding finding = found();
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_EQ(finding.advice, "");
  for (const char* part : {"bfloat16 about 2.0 times as fast",
                           "float16 takes about 30 times as long",
                           "bfloat16 and autocast save time"}) {
    EXPECT_TRUE(says(finding.value, part)) << finding.value;
  }
  detail::parse_precisions("bfloat16 1.5 float16 0.5", versions);
  finding = found();
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_TRUE(says(finding.advice, "train in float32")) << finding.advice;
  EXPECT_TRUE(says(finding.advice, "float16 does save time")) << finding.advice;
  EXPECT_EQ(finding.numbers.at("bfloat16_slowdown"), 1.5);
  Versions unknown;
  for (const char* text : {"", "bfloat16", "bfloat16 nan float16 -1", "what?"}) {
    detail::parse_precisions(text, unknown);
    EXPECT_EQ(unknown.bfloat16_slowdown, 0) << text;
    EXPECT_EQ(unknown.float16_slowdown, 0) << text;
  }
}

TEST(VersionCheck, KnowsBothMpis) {
  const auto open_mpi = detail::parse_mpi_version("mpirun (Open MPI) 5.0.3\n\nReport bugs to x\n");
  EXPECT_EQ(open_mpi.name, "Open MPI");
  EXPECT_EQ(open_mpi.number, "5.0.3");
  const auto mpich =
      detail::parse_mpi_version("HYDRA build details:\n    Version:    4.2\n    CC: gcc\n");
  EXPECT_EQ(mpich.name, "MPICH");
  EXPECT_EQ(mpich.number, "4.2");
  EXPECT_EQ(detail::parse_mpi_version("Intel(R) MPI Library").name, "");
}

TEST(MachineCheck, ShowsGpusAndWhatTheyLack) {
  EXPECT_EQ(detail::check_gpus({}).value, "none");
  EXPECT_EQ(detail::check_gpus({}).verdict, Verdict::kOk);
  const Finding unusable =
      detail::check_gpus({.has_driver = true, .why_none = "it is older than CUDA 11.2"});
  EXPECT_EQ(unusable.verdict, Verdict::kWarning);
  EXPECT_EQ(unusable.advice, "it is older than CUDA 11.2");
  device::GpuReport report;
  report.gpus = {{.name = "NVIDIA H200",
                  .memory_bytes = 140 * kGibibyte,
                  .architecture = 90,
                  .processors = 132,
                  .shares_memory = true}};
  report.driver = "13.0";
  report.compiler = "12.8";
  const Finding good = detail::check_gpus(report);
  EXPECT_EQ(good.value, "NVIDIA H200 (140 GiB, sm_90); driver for CUDA 13.0, NVRTC 12.8");
  EXPECT_EQ(good.verdict, Verdict::kOk);
  report.compiler.clear();
  EXPECT_EQ(detail::check_gpus(report).verdict, Verdict::kNote);
  EXPECT_TRUE(says(detail::check_gpus(report).advice, "NVRTC was not found"));
  report.gpus.front().shares_memory = false;
  EXPECT_EQ(detail::check_gpus(report).verdict, Verdict::kWarning);
}

}  // namespace
}  // namespace trireme
