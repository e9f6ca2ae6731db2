#include "support/machines.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::testing {
namespace {

constexpr int kCannotBeDone = 77;

Finished call_script(std::vector<std::string> words) {
  words.insert(words.begin(), Machines::script());
  return run_program(words);
}

// Names end in the process that made them: "test-PID-COUNT" by tests, "check-PID" by the script.
std::optional<pid_t> maker_of(const std::string& bed) {
  std::istringstream parts(bed);
  std::string kind;
  std::string number;
  std::getline(parts, kind, '-');
  std::getline(parts, number, '-');
  const auto pid = parse_integer(number);
  if ((kind != "test" && kind != "check") || !pid) {
    return std::nullopt;
  }
  return static_cast<pid_t>(*pid);
}

void remove_left_overs() {
  std::istringstream beds(call_script({"list"}).out);
  for (std::string bed; std::getline(beds, bed);) {
    const auto maker = maker_of(bed);
    if (maker && ::kill(*maker, 0) != 0 && errno == ESRCH) {
      call_script({"down", bed});  // another test may be doing the same
    }
  }
}

std::string unique_name() {
  static std::atomic<int> count{0};
  return detail::concat("test-", getpid(), "-", count++);
}

}  // namespace

std::optional<std::string> Machines::unavailable(const std::string& feature) {
  static std::mutex mutex;
  static std::map<std::string, std::optional<std::string>> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(feature);
  if (found != known.end()) {
    return found->second;
  }
  std::vector<std::string> words = {"check"};
  if (!feature.empty()) {
    words.push_back(feature);
  }
  const Finished result = call_script(words);
  // A broken script must not read as a host that cannot.
  TRIREME_CHECK(result.code == 0 || result.code == kCannotBeDone,
                script(),
                " check ",
                feature,
                " ended with ",
                result.code,
                ": ",
                result.err);
  const auto reason = result.code == 0 ? std::nullopt : std::optional(result.err);
  known[feature] = reason;
  return reason;
}

Machines::Machines(int count, bool with_switch)
    : name_(unique_name()), count_(count), owner_(getpid()) {
  remove_left_overs();
  std::vector<std::string> words = {"up", name_, std::to_string(count)};
  if (with_switch) {
    words.emplace_back("--switch");
  }
  command(words);
}

Machines::~Machines() {
  if (getpid() == owner_) {  // not in a rank that was forked from the test
    call_script({"down", name_});
  }
}

std::string Machines::script() {
  return TRIREME_MACHINES_SCRIPT;
}

std::string Machines::command(std::vector<std::string> words) const {
  const Finished result = call_script(words);
  TRIREME_CHECK(result.code == 0,
                script(),
                " ",
                words[0],
                " for ",
                name_,
                " ended with ",
                result.code,
                ": ",
                result.err);
  return result.out;
}

std::string Machines::host(int machine) const {
  return detail::concat(name_, "-", machine);
}

std::string Machines::address(int machine, int rail) const {
  std::string text = command({"address", name_, std::to_string(machine), std::to_string(rail)});
  text.pop_back();  // the end of the line
  return text;
}

std::unique_ptr<Program> Machines::run(int machine,
                                       const std::vector<std::string>& command,
                                       const std::vector<std::string>& environment) const {
  // By env(1) and not as the shell's own environment: there a name that is set twice is a lottery.
  std::vector<std::string> words = {script(), "exec", name_, std::to_string(machine), "--", "env"};
  words.insert(words.end(), environment.begin(), environment.end());
  words.insert(words.end(), command.begin(), command.end());
  return std::make_unique<Program>(words);
}

void Machines::inside(int machine, const std::function<void()>& body) const {
  const std::string path = "/run/netns/" + host(machine);
  std::exception_ptr error;
  // A namespace is a property of a thread; this one ends with it.
  std::thread thread([&] {
    try {
      const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      TRIREME_CHECK(file >= 0, "cannot open ", path, ": ", std::strerror(errno));
      // With its own /sys, as `ip netns exec` has it: UCX looks there for the interfaces.
      const bool there =
          setns(file, CLONE_NEWNET) == 0 && unshare(CLONE_NEWUTS | CLONE_NEWNS) == 0 &&
          sethostname(host(machine).c_str(), host(machine).size()) == 0 &&
          mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0 &&
          umount2("/sys", MNT_DETACH) == 0 && mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
      const int reason = errno;
      close(file);
      TRIREME_CHECK(there, "cannot enter ", path, ": ", std::strerror(reason));
      body();
    } catch (...) {
      error = std::current_exception();
    }
  });
  thread.join();
  if (error) {
    std::rethrow_exception(error);
  }
}

std::vector<pid_t> Machines::processes(int machine) const {
  const Finished result = run_program({"ip", "netns", "pids", host(machine)});
  TRIREME_CHECK(result.code == 0, "ip netns pids ", host(machine), ": ", result.err);
  std::istringstream text(result.out);
  std::vector<pid_t> pids;
  for (pid_t pid = 0; text >> pid;) {
    pids.push_back(pid);
  }
  return pids;
}

void Machines::kill(int machine, int signal) const {
  command({"kill", name_, std::to_string(machine), std::to_string(signal)});
}

Machines::Bytes Machines::bytes(int machine, int rail) const {
  std::istringstream text(command({"bytes", name_, std::to_string(machine)}));
  std::string interface;
  for (Bytes bytes; text >> interface >> bytes.sent >> bytes.received;) {
    if (interface == detail::concat("eth", rail)) {
      return bytes;
    }
  }
  TRIREME_CHECK(false, "no interface eth", rail, " on ", host(machine));
  return {};
}

void Machines::rate(const std::string& rate) const {
  command({"rate", name_, rate});
}

void Machines::delay(int machine, const std::string& milliseconds) const {
  command({"delay", name_, std::to_string(machine), milliseconds});
}

void Machines::loss(int machine, const std::string& percent) const {
  command({"loss", name_, std::to_string(machine), percent});
}

void Machines::cut(int machine, const std::string& interface) const {
  command({"cut", name_, std::to_string(machine), interface});
}

void Machines::mend(int machine) const {
  command({"mend", name_, std::to_string(machine)});
}

}  // namespace trireme::testing
