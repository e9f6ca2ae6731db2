#include "left_behind.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include "samples.h"
#include "trireme/core/concat.h"
#include "trireme/core/counted.h"
#include "trireme/core/environment.h"

namespace trireme::bench {
namespace {

namespace fs = std::filesystem;

std::set<std::string> shared_memory_now() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    names.insert(entry.path().filename());  // libraries that we use have names of their own
  }
  return names;
}

double of_tenth(const std::vector<Held>& all, bool last, std::int64_t Held::*what) {
  const std::size_t count = std::max<std::size_t>(1, all.size() / 10);
  std::vector<double> values;
  for (std::size_t i = last ? all.size() - count : 0; values.size() < count; ++i) {
    values.push_back(static_cast<double>(all[i].*what));
  }
  return median(values);
}

std::string over_time(const std::string& who, const std::vector<Held>& all) {
  const auto most = [&](std::int64_t Held::*what) {
    return (*std::max_element(all.begin(),
                              all.end(),
                              [&](const Held& a, const Held& b) { return a.*what < b.*what; })).*
           what;
  };
  const auto megabytes = [](double bytes) { return std::round(bytes / 1e5) / 10; };
  return detail::concat(
      "{}: {} descriptors and {} MB in the first tenth, {} and {} MB in the last, at most {} and "
      "{} "
      "MB\n",
      {who,
       of_tenth(all, false, &Held::descriptors),
       megabytes(of_tenth(all, false, &Held::bytes)),
       of_tenth(all, true, &Held::descriptors),
       megabytes(of_tenth(all, true, &Held::bytes)),
       most(&Held::descriptors),
       megabytes(static_cast<double>(most(&Held::bytes)))});
}

}  // namespace

LeftBehind::LeftBehind()
    : mark_(detail::concat("TRIREME_BENCH_MARK={}", {getpid()})), before_(shared_memory_now()) {}

std::vector<pid_t> LeftBehind::processes() const {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const auto pid = parse_integer(entry.path().filename().string());
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    if (pid && (std::string(1, '\0') + all).find('\0' + mark_ + '\0') != std::string::npos) {
      found.push_back(static_cast<pid_t>(*pid));
    }
  }
  return found;
}

std::set<std::string> LeftBehind::shared_memory() const {
  std::set<std::string> now = shared_memory_now();
  for (const std::string& name : before_) {
    now.erase(name);
  }
  return now;
}

bool LeftBehind::nothing() const {
  return processes().empty() && shared_memory().empty();
}

std::string LeftBehind::text() const {
  return detail::counted(static_cast<std::int64_t>(processes().size()), "process", "processes") +
         ", " +
         detail::counted(static_cast<std::int64_t>(shared_memory().size()),
                         "piece of shared memory",
                         "pieces of shared memory");
}

Held held_by(pid_t process) {
  const std::string folder = detail::concat("/proc/{}", {process});
  Held held;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder + "/fd", ignored)) {
    held.descriptors += entry.path().empty() ? 0 : 1;
  }
  std::ifstream file(folder + "/statm");
  std::int64_t whole = 0;
  std::int64_t resident = 0;
  if (file >> whole >> resident) {
    held.bytes = resident * sysconf(_SC_PAGESIZE);
  }
  return held;
}

void HeldOverTime::add(pid_t launcher, const std::vector<pid_t>& ranks) {
  launcher_.push_back(held_by(launcher));
  Held most;
  for (const pid_t rank : ranks) {
    const Held held = held_by(rank);
    most.descriptors = std::max(most.descriptors, held.descriptors);
    most.bytes = std::max(most.bytes, held.bytes);
  }
  ranks_.push_back(most);
}

std::string HeldOverTime::text() const {
  return launcher_.empty()
             ? ""
             : over_time("the launcher", launcher_) + over_time("the rank with the most", ranks_);
}

}  // namespace trireme::bench
