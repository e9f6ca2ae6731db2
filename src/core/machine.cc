#include "trireme/core/machine.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    return std::nullopt;
  }
  return line;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  const auto value = line ? parse_integer(*line) : std::nullopt;  // "max" is no number: no limit
  return value && *value >= 0 ? std::optional<std::uint64_t>(*value) : std::nullopt;
}

// Of the machine, in bytes; without such a line as much as there can be.
std::uint64_t memory_information(const std::string& root, const std::string& wanted) {
  std::ifstream meminfo(root + "/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream fields(line);
    fields.imbue(std::locale::classic());
    std::string name;
    std::uint64_t kibibytes = 0;
    if (fields >> name >> kibibytes && name == wanted) {
      return kibibytes << 10;
    }
  }
  return std::numeric_limits<std::uint64_t>::max();
}

// The number of one line of a group's memory.stat; 0 where there is none.
std::uint64_t memory_statistic(const std::string& folder, const std::string& wanted) {
  std::ifstream file(folder + "/memory.stat");
  for (std::string line; std::getline(file, line);) {
    if (line.size() > wanted.size() && line.starts_with(wanted) && line[wanted.size()] == ' ') {
      const auto value = parse_integer(line.substr(wanted.size() + 1));
      return value && *value > 0 ? static_cast<std::uint64_t>(*value) : 0;
    }
  }
  return 0;
}

// This process's folder in a control-group hierarchy: "" names version 2, else a controller of
// version 1.
std::string cgroup_path(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (controller.empty() && second == first + 1) {
      return line.substr(second + 1);
    }
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name == controller) {
        return line.substr(second + 1);
      }
    }
  }
  return {};
}

// Calls visit(folder) for this process's group and every group above it; inside a container only
// the mount's root may be visible, which is the last one tried.
template <class Visit>
void for_each_group(const std::string& mount, std::string path, Visit visit) {
  for (;;) {
    visit(mount + path);
    if (path.empty() || path == "/") {
      break;
    }
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The kernel refuses a set smaller than its own: grow until it fits.
  for (int count = 1024; count <= 1 << 20; count *= 2) {
    cpu_set_t* set = CPU_ALLOC(count);
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) {
        cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (known) {
      break;
    }
  }
  if (cpus.empty()) {
    cpus.push_back(0);
  }
  return cpus;
}

int machine_cpus() {
  std::size_t count = 0;
  // A thread asks for all, and the kernel leaves it those of its control group. What this thread
  // may use stays as it is.
  try {
    std::thread([&count] {
      cpu_set_t all;
      CPU_ZERO(&all);
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        CPU_SET(cpu, &all);
      }
      sched_setaffinity(0, sizeof(all), &all);
      count = allowed_cpus().size();
    }).join();
  } catch (const std::system_error&) {  // no more threads for this user
    count = allowed_cpus().size();
  }
  return static_cast<int>(count);
}

int cpu_quota(const std::string& root) {
  const std::string groups = root + "/sys/fs/cgroup";
  double tightest = std::numeric_limits<double>::infinity();
  for_each_group(groups, cgroup_path(root, ""), [&](const std::string& folder) {
    std::istringstream line(first_line(folder + "/cpu.max").value_or(""));
    line.imbue(std::locale::classic());
    double quota = 0;
    double period = 0;
    if (line >> quota >> period && quota > 0 && period > 0) {
      tightest = std::min(tightest, quota / period);
    }
  });
  for_each_group(groups + "/cpu", cgroup_path(root, "cpu"), [&](const std::string& folder) {
    const auto quota = number_in(folder + "/cpu.cfs_quota_us");
    const auto period = number_in(folder + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0) {
      tightest = std::min(tightest, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  });
  return tightest < 1e6 ? std::max(1, static_cast<int>(tightest + 0.999)) : 0;
}

std::uint64_t available_memory_bytes(const std::string& root) {
  const std::string groups = root + "/sys/fs/cgroup";
  std::uint64_t available = memory_information(root, "MemAvailable:");
  // A group's usage includes the page cache of every file that was read, which the kernel drops
  // before it kills anything: what nobody has used lately is as good as free. (What is in use, and
  // shared memory, is not in this number.)
  const auto bound = [&](const std::string& folder,
                         const char* limit_file,
                         const char* usage_file,
                         const char* cache_name) {
    const auto limit = number_in(folder + limit_file);
    const auto usage = number_in(folder + usage_file);
    if (limit && usage) {
      const std::uint64_t kept = *usage - std::min(*usage, memory_statistic(folder, cache_name));
      available = std::min(available, *limit > kept ? *limit - kept : 0);
    }
  };
  for_each_group(groups, cgroup_path(root, ""), [&](const std::string& folder) {
    bound(folder, "/memory.max", "/memory.current", "inactive_file");
  });
  // Version 1 counts the groups below in its usage, and in the statistics that begin with "total_".
  for_each_group(groups + "/memory", cgroup_path(root, "memory"), [&](const std::string& folder) {
    bound(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");
  });
  return available;
}

std::uint64_t total_memory_bytes(const std::string& root) {
  const std::uint64_t quota = memory_quota_bytes(root);
  const std::uint64_t all = memory_information(root, "MemTotal:");
  return quota > 0 ? std::min(quota, all) : all;
}

std::uint64_t memory_quota_bytes(const std::string& root) {
  constexpr std::uint64_t kNone = std::uint64_t{1} << 62;  // version 1 writes a number near 2^63
  const std::string groups = root + "/sys/fs/cgroup";
  std::uint64_t limit = kNone;
  for_each_group(groups, cgroup_path(root, ""), [&](const std::string& folder) {
    limit = std::min(limit, number_in(folder + "/memory.max").value_or(kNone));
  });
  for_each_group(groups + "/memory", cgroup_path(root, "memory"), [&](const std::string& folder) {
    limit = std::min(limit, number_in(folder + "/memory.limit_in_bytes").value_or(kNone));
  });
  return limit < kNone ? limit : 0;
}

std::uint64_t available_processes(std::string* limit, const std::string& root) {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  const auto bound = [&](std::uint64_t most, std::uint64_t used, const std::string& name) {
    const std::uint64_t left = most > used ? most - used : 0;
    if (left < available) {
      available = left;
      if (limit != nullptr) {
        *limit = name;
      }
    }
  };
  const auto bound_by_group = [&](const std::string& folder) {
    const auto most = number_in(folder + "/pids.max");
    const auto used = number_in(folder + "/pids.current");
    if (most && used) {
      bound(*most, *used, "pids.max of the control group");
    }
  };
  const std::string groups = root + "/sys/fs/cgroup";
  for_each_group(groups, cgroup_path(root, ""), bound_by_group);
  for_each_group(groups + "/pids", cgroup_path(root, "pids"), bound_by_group);
  for (const char* name : {"pid_max", "threads-max"}) {
    if (const auto most = number_in(root + "/proc/sys/kernel/" + name)) {
      bound(*most, 0, concat("/proc/sys/kernel/", name));
    }
  }
  rlimit own{};
  // The administrator is above it.
  if (root.empty() && geteuid() != 0 && getrlimit(RLIMIT_NPROC, &own) == 0 &&
      own.rlim_cur != RLIM_INFINITY) {
    bound(own.rlim_cur, 0, "ulimit -u");
  }
  return available;
}

}  // namespace trireme
