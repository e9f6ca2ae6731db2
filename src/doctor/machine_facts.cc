#include "doctor/machine_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <locale>
#include <sstream>

#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/machine.h"
#include "trireme/core/proc_files.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "1024 kB" as bytes.
std::uint64_t kibibytes(const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  std::uint64_t count = 0;
  in >> count;
  return count << 10;
}

// "always within_size advise [never] deny force": the word in brackets.
std::string chosen_word(const std::string& line) {
  const auto begin = line.find('[');
  const auto end = line.find(']');
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : line.substr(begin + 1, end - begin - 1);
}

// A line of /proc/self/limits: "Max open files            1024                 4096        files".
ProcessLimit process_limit(const std::string& path, const std::string& name) {
  ProcessLimit limit;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) {
      continue;
    }
    std::istringstream words(line.substr(name.size()));
    std::string soft;
    std::string hard;
    words >> soft >> hard;
    const auto value = [](const std::string& word) {
      const auto number = parse_integer(word);
      return number && *number >= 0 ? static_cast<std::uint64_t>(*number) : kUnlimited;
    };
    limit = {value(soft), value(hard)};
  }
  return limit;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::set<std::string> read_governors(const std::string& folder) {
  std::set<std::string> governors;
  for (const std::string& name : names_in(folder)) {
    const std::string line =
        first_line(detail::concat(folder, "/", name, "/cpufreq/scaling_governor"));
    if (name.starts_with("cpu") && !line.empty()) {
      governors.insert(line);
    }
  }
  return governors;
}

std::vector<NetworkInterface> read_interfaces(const std::string& folder) {
  std::vector<NetworkInterface> interfaces;
  for (const std::string& name : names_in(folder)) {
    if (name == "lo" || !fs::is_directory(fs::path(folder) / name)) {
      continue;
    }
    // Unknown speeds are -1, or an error when the file is read.
    const auto speed = parse_integer(first_line(detail::concat(folder, "/", name, "/speed")));
    interfaces.push_back({name,
                          first_line(detail::concat(folder, "/", name, "/operstate")),
                          speed && *speed > 0 ? static_cast<int>(*speed) : 0});
  }
  return interfaces;
}

bool kernel_has_pidfd() {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))).valid();
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last > 1 << 20) {
      break;
    }
    for (std::int64_t cpu = *first; cpu <= *last; ++cpu) {
      cpus.push_back(static_cast<int>(cpu));
    }
  }
  return cpus;
}

MachineFacts read_machine(const std::string& root) {
  MachineFacts facts;
  const std::string cpus = root + "/sys/devices/system/cpu";
  facts.host = first_line(root + "/proc/sys/kernel/hostname");
  facts.kernel = first_line(root + "/proc/sys/kernel/osrelease");
  facts.processor = processor_name(root);
  facts.online_cpus = static_cast<int>(parse_cpu_list(first_line(cpus + "/online")).size());
  facts.allowed_cpus = parse_cpu_list(proc_field(root + "/proc/self/status", "Cpus_allowed_list"));
  facts.cpu_quota = cpu_quota(root);
  std::istringstream load(first_line(root + "/proc/loadavg"));
  load.imbue(std::locale::classic());
  if (double value = 0; load >> value) {
    facts.load = value;
  }
  facts.governors = read_governors(cpus);
  facts.clock_source =
      first_line(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");

  const std::string meminfo = root + "/proc/meminfo";
  facts.memory_total = kibibytes(proc_field(meminfo, "MemTotal"));
  facts.memory_available = available_memory_bytes(root);
  facts.memory_limit = memory_quota_bytes(root);
  facts.swap_total = kibibytes(proc_field(meminfo, "SwapTotal"));
  facts.swap_used = facts.swap_total - kibibytes(proc_field(meminfo, "SwapFree"));
  struct statvfs shm {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    facts.has_shm_folder = true;
    facts.shm_size = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
    facts.shm_free = static_cast<std::uint64_t>(shm.f_bavail) * shm.f_frsize;
  }
  facts.shared_huge_pages =
      chosen_word(first_line(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));

  facts.open_files = process_limit(root + "/proc/self/limits", "Max open files");
  facts.locked_memory = process_limit(root + "/proc/self/limits", "Max locked memory");
  facts.has_pidfd = kernel_has_pidfd();
  facts.has_rdma = !names_in(root + "/sys/class/infiniband").empty();
  facts.interfaces = read_interfaces(root + "/sys/class/net");
  return facts;
}

}  // namespace trireme::detail
