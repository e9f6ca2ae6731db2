#include "doctor/machine_check.h"

#include <algorithm>

#include "doctor/precision_check.h"
#include "doctor/quantity.h"
#include "launch/placement.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;
constexpr std::uint64_t kGibibyte = 1 << 30;

constexpr std::uint64_t kLittleMemory = kGibibyte;
constexpr std::uint64_t kMuchSwap = 256 * kMebibyte;
constexpr std::uint64_t kSmallShm = 64 * kMebibyte;  // what containers get unless asked
constexpr std::uint64_t kFewFiles = 1024;            // data readers and checkpoints open many
constexpr double kBusy = 0.5;                        // of the processors

double as_number(std::uint64_t value) {
  return static_cast<double>(value);
}

std::string limit_text(std::uint64_t limit, bool in_bytes) {
  if (limit == kUnlimited) {
    return "unlimited";
  }
  return in_bytes ? bytes_text(limit) : std::to_string(limit);
}

Finding check_processors(const MachineFacts& facts, const Purpose& purpose) {
  const int allowed = static_cast<int>(facts.allowed_cpus.size());
  const int usable = usable_processors(facts);
  Finding finding{"processors",
                  concat(usable, facts.processor.empty() ? "" : " x ", facts.processor),
                  {{"online", facts.online_cpus},
                   {"allowed", allowed},
                   {"quota", facts.cpu_quota},
                   {"usable", usable}}};
  if (purpose.ranks > usable) {
    finding.value += concat(", for ", counted(purpose.ranks, "rank"));
    finding.judge(Verdict::kWarning,
                  concat("start at most {} here: more would take turns and wait for each other",
                         {counted(usable, "rank")}));
  } else if (usable < allowed) {
    finding.value += concat(" (the control group's limit; ", allowed, " are visible)");
    finding.judge(Verdict::kNote,
                  "raise the limit on processor time (docker --cpus, cpu.max) to use them all");
  } else if (allowed < facts.online_cpus) {
    finding.value += concat(" of ", facts.online_cpus, " (affinity)");
    finding.judge(Verdict::kNote,
                  "this process may not use the others: see taskset, docker --cpuset-cpus, or "
                  "the job's request");
  }
  return finding;
}

Finding check_threads(const MachineFacts& facts, const Purpose& purpose) {
  const auto places = place_ranks(purpose.ranks, facts.allowed_cpus, facts.cpu_quota);
  int share = places.front().threads;
  for (const Placement& place : places) {
    share = std::min(share, place.threads);
  }
  const int threads = purpose.omp_threads > 0 ? purpose.omp_threads : share;
  const int usable = usable_processors(facts);
  Finding finding{"threads",
                  concat(threads,
                         " per rank, ",
                         counted(purpose.ranks, "rank"),
                         purpose.omp_threads > 0 ? " (OMP_NUM_THREADS)" : ""),
                  {{"per_rank", threads}, {"share", share}}};
  if (purpose.omp_threads > share && threads * purpose.ranks > usable) {
    finding.judge(
        Verdict::kWarning,
        concat("unset OMP_NUM_THREADS, or set it to {}: {} on {} slow each other down",
               {share, counted(threads * purpose.ranks, "thread"), counted(usable, "processor")}));
  } else if (purpose.omp_threads > 0 && threads < share) {
    finding.judge(Verdict::kNote,
                  concat("unset OMP_NUM_THREADS to use all ", share, " processors of a rank"));
  }
  return finding;
}

Finding check_load(const MachineFacts& facts) {
  if (!facts.load) {
    return {"load", "not known"};
  }
  const int usable = usable_processors(facts);
  Finding finding{
      "load", concat(number_text(*facts.load), " in the last minute"), {{"average", *facts.load}}};
  // Of all processors: what else runs may use them even where this process may not.
  if (*facts.load > kBusy * std::max(usable, facts.online_cpus)) {
    finding.judge(
        Verdict::kWarning,
        "something else keeps the machine busy (see top): the speeds below are too low, and "
        "training will be slow as well");
  }
  return finding;
}

Finding check_frequency(const MachineFacts& facts) {
  const std::string names = listed(facts.governors);
  if (names.empty()) {
    return {"frequency", "not visible (a virtual machine?)"};
  }
  Finding finding{"frequency", "governor " + names};
  if (facts.governors.contains("powersave") || facts.governors.contains("conservative")) {
    finding.judge(
        Verdict::kNote,
        "cpupower frequency-set -g performance: processors that must first speed up answer late");
  } else if (facts.governors.size() > 1) {
    finding.judge(Verdict::kNote,
                  "give all processors the same governor: the ranks wait for the slowest");
  }
  return finding;
}

Finding check_clock_source(const MachineFacts& facts) {
  const std::string& source = facts.clock_source;
  Finding finding{"clock source", source.empty() ? "not known" : source};
  if (source == "hpet" || source == "acpi_pm" || source == "pit" || source == "jiffies") {
    finding.judge(
        Verdict::kWarning,
        "reading it is slow, and every wait reads it: boot with tsc=reliable or clocksource=tsc if "
        "the processor's counter can be trusted");
  }
  return finding;
}

Finding check_memory(const MachineFacts& facts) {
  Finding finding{
      "memory",
      concat(bytes_text(facts.memory_available), " available of ", bytes_text(facts.memory_total)),
      {{"total_bytes", as_number(facts.memory_total)},
       {"available_bytes", as_number(facts.memory_available)},
       {"limit_bytes", as_number(facts.memory_limit)}}};
  const bool limited = facts.memory_limit > 0 && facts.memory_limit < facts.memory_total;
  if (limited) {
    finding.value += concat(" (the control group's limit: ", bytes_text(facts.memory_limit), ")");
  }
  if (facts.memory_available < kLittleMemory) {
    finding.judge(Verdict::kWarning, "end what else uses memory (see top), or raise the limit");
  } else if (limited) {
    finding.judge(Verdict::kNote, "raise the limit (docker --memory, memory.max) to use all of it");
  }
  return finding;
}

Finding check_swap(const MachineFacts& facts) {
  if (facts.swap_total == 0) {
    return {"swap", "none", {{"used_bytes", 0}}};
  }
  Finding finding{
      "swap",
      concat(bytes_text(facts.swap_used), " used of ", bytes_text(facts.swap_total)),
      {{"used_bytes", as_number(facts.swap_used)}, {"total_bytes", as_number(facts.swap_total)}}};
  if (facts.swap_used > kMuchSwap) {
    finding.judge(Verdict::kWarning,
                  "memory was short: end what uses it, then swapoff -a && swapon -a");
  }
  return finding;
}

Finding check_shm(const MachineFacts& facts) {
  if (!facts.has_shm_folder) {
    return {"/dev/shm",
            "is missing",
            {},
            Verdict::kNote,
            "Trireme does not need it, but PyTorch's loaders and MPI do: mount a tmpfs there"};
  }
  Finding finding{
      "/dev/shm",
      concat(bytes_text(facts.shm_free), " free of ", bytes_text(facts.shm_size)),
      {{"size_bytes", as_number(facts.shm_size)}, {"free_bytes", as_number(facts.shm_free)}}};
  if (facts.shm_free <= kSmallShm) {
    finding.judge(
        Verdict::kNote,
        "Trireme does not need it, but PyTorch's loaders and MPI do: docker --shm-size, or remount "
        "it larger");
  }
  return finding;
}

Finding check_huge_pages(const MachineFacts& facts) {
  const std::string& mode = facts.shared_huge_pages;
  if (mode.empty()) {
    return {"huge pages", "not visible"};
  }
  Finding finding{"huge pages", "shared memory: " + mode};
  if (mode == "never" || mode == "deny") {
    finding.judge(Verdict::kNote,
                  "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (as root): "
                  "shared memory then costs fewer page faults");
  }
  return finding;
}

Finding check_open_files(const MachineFacts& facts, const Purpose& purpose) {
  const ProcessLimit& limit = facts.open_files;
  // What the launcher needs for pipes and what it keeps open itself.
  const auto needed = static_cast<std::uint64_t>(purpose.ranks) * 3 + 32;
  Finding finding{"open files",
                  concat("at most ", limit_text(limit.soft, false)),
                  {{"needed", as_number(needed)}}};
  if (limit.soft != kUnlimited) {
    finding.numbers["soft"] = as_number(limit.soft);
  }
  if (limit.hard < needed) {
    finding.judge(Verdict::kProblem,
                  concat(counted(purpose.ranks, "rank"),
                         purpose.ranks == 1 ? " needs " : " need ",
                         needed,
                         ": raise the hard limit (ulimit -Hn, /etc/security/limits.conf)"));
  } else if (limit.soft < kFewFiles) {
    finding.judge(Verdict::kNote, "ulimit -n 65536: UCX and data sets of many files open more");
  }
  return finding;
}

Finding check_locked_memory(const MachineFacts& facts) {
  const std::uint64_t limit = facts.locked_memory.soft;
  Finding finding{"locked memory", concat("at most ", limit_text(limit, true))};
  if (limit != kUnlimited) {
    finding.numbers["soft_bytes"] = as_number(limit);
    if (facts.has_rdma) {
      finding.judge(Verdict::kWarning,
                    "this machine has RDMA, which locks what it sends: ulimit -l unlimited "
                    "(/etc/security/limits.conf, or docker --ulimit memlock=-1)");
    }
  }
  return finding;
}

Finding check_pidfd(const MachineFacts& facts) {
  if (facts.has_pidfd) {
    return {"pidfd", "supported"};
  }
  return problem("pidfd",
                 "not supported",
                 "ranks watch each other through pidfd_open: use Linux 5.3 or newer, and let the "
                 "container's seccomp profile allow it");
}

Finding check_interfaces(const MachineFacts& facts, const Purpose& purpose) {
  std::string list;
  const auto add = [&](const NetworkInterface& interface) {
    list += concat(list.empty() ? "" : ", ", interface.name, " ", interface.state);
    if (interface.megabits_per_second > 0) {
      list += concat(" ", interface.megabits_per_second, " Mbit/s");
    }
  };
  std::vector<std::string> missing;
  std::vector<std::string> down;
  for (const std::string& name : purpose.interfaces) {
    const auto found = std::ranges::find(facts.interfaces, name, &NetworkInterface::name);
    if (found == facts.interfaces.end()) {
      missing.push_back(name);
      continue;
    }
    add(*found);
    if (found->state == "down" || found->state == "lowerlayerdown") {
      down.push_back(name);
    }
  }
  if (purpose.interfaces.empty()) {
    std::ranges::for_each(facts.interfaces, add);
  }
  if (!missing.empty()) {
    const std::string names = listed(facts.interfaces, &NetworkInterface::name);
    return problem("interfaces",
                   "there is no " + listed(missing),
                   concat("--interfaces: this machine has ", names.empty() ? "none" : names));
  }
  Finding finding{"interfaces", list.empty() ? "none but the loopback" : list};
  if (!down.empty()) {
    finding.judge(Verdict::kProblem,
                  concat("ip link set ", listed(down), " up, or leave it out of --interfaces"));
  }
  return finding;
}

// `needed`: --backend mpi was asked for, and does not work as things are.
Finding check_mpi(const char* name, const std::string& version, bool needed) {
  Finding finding{name, version.empty() ? "not found" : version};
  if (needed) {
    finding.judge(Verdict::kProblem,
                  version.empty()
                      ? "--backend mpi: install Open MPI or MPICH, and put mpirun into PATH"
                      : "--backend mpi: Trireme's module for it is missing or cannot be loaded: "
                        "build Trireme where the mpicc of this MPI is installed");
  }
  return finding;
}

}  // namespace

int usable_processors(const MachineFacts& facts) {
  const int allowed = std::max(1, static_cast<int>(facts.allowed_cpus.size()));
  return facts.cpu_quota > 0 ? std::min(allowed, facts.cpu_quota) : allowed;
}

std::vector<Finding> check_versions(const Versions& versions,
                                    const std::string& kernel,
                                    const Purpose& purpose) {
  std::vector<Finding> findings;
  findings.push_back({"trireme", versions.trireme});
  Finding torch{"libtorch", versions.libtorch};
  if (versions.libtorch.empty()) {
    torch.value = "built without it";
    torch.judge(Verdict::kNote, "trireme train and sample need it: build with TRIREME_WITH_TORCH");
  } else if (!versions.worker_trouble.empty()) {
    torch.value += concat("; ", versions.worker_trouble);
    torch.judge(
        Verdict::kProblem,
        "trireme train cannot run: install LibTorch at the path where Trireme was built with it, "
        "or set LD_LIBRARY_PATH to its lib folder");
  }
  findings.push_back(torch);
  if (!versions.libtorch.empty() && versions.worker_trouble.empty()) {
    findings.push_back(check_precisions(versions));
  }
  findings.push_back({"compiler", versions.compiler});
  findings.push_back({"kernel", kernel.empty() ? "not known" : kernel});

  const bool has_open_mpi = !versions.open_mpi.empty();
  const bool has_mpich = !versions.mpich.empty();
  const bool mpi_works =
      (has_open_mpi && versions.open_mpi_module) || (has_mpich && versions.mpich_module);
  Finding ucx{"ucx", versions.ucx.empty() ? "not found" : versions.ucx};
  if (versions.ucx.empty()) {
    const bool between = purpose.machines > 1 && purpose.backend != "mpi";
    ucx.judge(purpose.backend == "ucx" || between ? Verdict::kProblem : Verdict::kNote,
              "needed between machines: install UCX (Debian: libucx0)");
    if (mpi_works) {
      ucx.advice += ", or start the ranks with mpirun and use --backend mpi";
    }
  }
  findings.push_back(ucx);
  const bool mpi_needed = purpose.backend == "mpi" && !mpi_works;
  findings.push_back(
      check_mpi("open mpi", versions.open_mpi, mpi_needed && (has_open_mpi || !has_mpich)));
  findings.push_back(check_mpi("mpich", versions.mpich, mpi_needed && has_mpich));
  return findings;
}

std::vector<Finding> check_machine(const MachineFacts& facts, const Purpose& purpose) {
  return {check_processors(facts, purpose),
          check_threads(facts, purpose),
          check_load(facts),
          check_frequency(facts),
          check_clock_source(facts),
          check_memory(facts),
          check_swap(facts),
          check_shm(facts),
          check_huge_pages(facts),
          check_open_files(facts, purpose),
          check_locked_memory(facts),
          check_pidfd(facts),
          check_interfaces(facts, purpose)};
}

}  // namespace trireme::detail
