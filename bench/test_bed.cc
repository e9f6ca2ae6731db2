#include "test_bed.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/machine.h"

namespace trireme::bench {
namespace {

constexpr int kCannotBeDone = 77;
constexpr int kPort = 29400;  // nobody else is in these namespaces

struct Answer {
  int code = -1;
  std::string text;  // standard output and errors
};

Answer call_script(const std::vector<std::string>& words) {
  std::string line = TRIREME_MACHINES_SCRIPT;
  for (const std::string& word : words) {
    line += " " + word;  // names, numbers and rates: nothing that a shell would see
  }
  FILE* pipe = popen((line + " 2>&1").c_str(), "re");
  TRIREME_CHECK(pipe != nullptr, line, " could not be started: ", detail::errno_text(errno));
  Answer answer;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = fread(part.data(), 1, part.size(), pipe)) > 0;) {
    answer.text.append(part.data(), got);
  }
  const int status = pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  while (!answer.text.empty() && answer.text.back() == '\n') {
    answer.text.pop_back();
  }
  return answer;
}

constexpr const char* kNameStart = "bench-";  // then the process that made it

void remove_left_overs() {
  std::istringstream beds(call_script({"list"}).text);
  for (std::string bed; std::getline(beds, bed);) {
    const auto maker = bed.starts_with(kNameStart)
                           ? parse_integer(bed.substr(std::string(kNameStart).size()))
                           : std::nullopt;
    if (maker && kill(static_cast<pid_t>(*maker), 0) != 0 && errno == ESRCH) {
      call_script({"down", bed});
    }
  }
}

std::string list_of(const std::vector<int>& numbers, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) {
    text += (i > begin ? "," : "") + std::to_string(numbers[i]);
  }
  return text;
}

// `trireme run` or `trireme train` as one of the machines, with so many ranks on each.
struct JobPart {
  const char* command;
  int machines;
  int ranks;
  std::string interfaces;

  std::vector<std::string> words(const TestBed& bed, int machine) const {
    const auto trireme = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "trireme";
    std::vector<std::string> all = {
        trireme.string(), command, "-n", std::to_string(ranks), "--threads", "1"};
    if (machines > 1) {
      // For the other namespaces of this host, which could not get here anyway.
      setenv("TRIREME_TOKEN", ("bench-" + std::to_string(getpid())).c_str(), 0);
      all.insert(all.end(),
                 {"--nnodes",
                  std::to_string(machines),
                  "--node-rank",
                  std::to_string(machine),
                  "--rendezvous",
                  bed.address(0) + ":" + std::to_string(kPort),
                  "--interfaces",
                  interfaces});
    }
    return all;
  }
};

}  // namespace

TestBed::TestBed(int machines) : name_(kNameStart + std::to_string(getpid())), machines_(machines) {
  TRIREME_CHECK(access(TRIREME_MACHINES_SCRIPT, X_OK) == 0,
                "a test bed is created by ",
                TRIREME_MACHINES_SCRIPT,
                ", which is missing; run from the source tree that this program was built from");
  remove_left_overs();
  const Answer made = call_script({"up", name_, std::to_string(machines)});
  TRIREME_CHECK(made.code != kCannotBeDone,
                "a test bed of ",
                machines,
                " machines needs network namespaces, which only root can have: ",
                made.text,
                "; on real machines: --nnodes, --node-rank and --rendezvous");
  TRIREME_CHECK(made.code == 0, "no test bed could be created: ", made.text);
  const std::vector<int> cpus = allowed_cpus();
  const std::size_t count = cpus.size();
  const auto total = static_cast<std::size_t>(machines);
  for (std::size_t k = 0; k < total; ++k) {
    processors_.push_back(count < total
                              ? list_of(cpus, 0, count)
                              : list_of(cpus, k * count / total, (k + 1) * count / total));
  }
  fewest_processors_ = static_cast<int>(count / total);
}

TestBed::~TestBed() {
  try {
    call_script({"down", name_});
  } catch (const std::exception& error) {
    log(LogLevel::kWarning,
        detail::concat("the machines ", name_, " are left behind: ", error.what()));
  }
}

std::string TestBed::script(std::vector<std::string> words) const {
  words.insert(words.begin() + 1, name_);
  const Answer answer = call_script(words);
  TRIREME_CHECK(answer.code == 0, answer.text);
  return answer.text;
}

std::string TestBed::address(int machine) const {
  return script({"address", std::to_string(machine)});
}

const std::string& TestBed::processors(int machine) const {
  return processors_.at(static_cast<std::size_t>(machine));
}

bool TestBed::has_room_for(int ranks) const {
  return ranks <= fewest_processors_;
}

std::vector<std::string> TestBed::on(int machine, const std::vector<std::string>& command) const {
  std::vector<std::string> words = {TRIREME_MACHINES_SCRIPT,
                                    "exec",
                                    name_,
                                    std::to_string(machine),
                                    "--",
                                    "taskset",
                                    "-c",
                                    processors(machine)};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::vector<std::string> TestBed::under_mpirun(int ranks,
                                               const std::string& interfaces,
                                               const std::vector<std::string>& variables,
                                               const std::vector<std::string>& command) const {
  const std::string count = std::to_string(ranks);
  std::vector<std::string> words = {TRIREME_MACHINES_SCRIPT,
                                    "exec",
                                    name_,
                                    "0",
                                    "--",
                                    "mpirun.openmpi",
                                    "--allow-run-as-root",
                                    "--mca",
                                    "plm_rsh_agent",
                                    std::string(TRIREME_MACHINES_SCRIPT) + " rsh",
                                    "--mca",
                                    "oob_tcp_if_include",
                                    interfaces,
                                    "--mca",
                                    "pml",
                                    "ob1",
                                    "--mca",
                                    "btl",
                                    ranks > 1 ? "self,vader,tcp" : "self,tcp",
                                    "--mca",
                                    "btl_tcp_if_include",
                                    interfaces,
                                    // Each machine has processors of its own, below.
                                    "--bind-to",
                                    "none"};
  if (!has_room_for(ranks)) {
    // Without it Open MPI spins while the rank it waits for has no processor.
    words.insert(words.end(), {"--oversubscribe", "--mca", "mpi_yield_when_idle", "1"});
  }
  for (const std::string& variable : variables) {
    words.insert(words.end(), {"-x", variable});
  }
  for (int k = 0; k < machines_; ++k) {
    words.insert(words.end(),
                 {"-H", address(k) + ":" + count, "-n", count, "taskset", "-c", processors(k)});
    words.insert(words.end(), command.begin(), command.end());
    if (k + 1 < machines_) {
      words.emplace_back(":");
    }
  }
  return words;
}

void TestBed::rate(const std::string& rate) const {
  script({"rate", rate});
}

std::int64_t TestBed::bytes_sent() const {
  std::int64_t sum = 0;
  for (int k = 0; k < machines_; ++k) {
    std::istringstream text(script({"bytes", std::to_string(k)}));
    std::string name;
    std::int64_t sent = 0;
    std::int64_t received = 0;
    while (text >> name >> sent >> received) {
      sum += sent;
    }
  }
  return sum;
}

int launch_on(const TestBed& bed, const LaunchOptions& job) {
  const std::string interfaces = job.interfaces.empty() ? "eth0" : job.interfaces;
  std::vector<std::pair<std::string, std::string>> choices;
  if (!job.backend.empty()) {
    choices.emplace_back("backend", job.backend);
  }
  if (!job.algorithm.empty()) {
    choices.emplace_back("algorithm", job.algorithm);
  }
  if (job.sum_group) {
    choices.emplace_back("sum-group", std::to_string(*job.sum_group));
  }
  if (job.backend == "mpi") {
    std::vector<std::string> variables;
    for (auto [name, value] : choices) {
      std::replace(name.begin(), name.end(), '-', '_');
      std::transform(name.begin(), name.end(), name.begin(), toupper);
      variables.push_back(detail::concat("TRIREME_", name, "=", value));
    }
    if (job.encrypt) {
      variables.emplace_back("TRIREME_ENCRYPT=on");
    }
    if (job.checksums) {
      variables.emplace_back("TRIREME_CHECKSUMS=on");
    }
    return run_together({bed.under_mpirun(job.ranks, interfaces, variables, job.command)});
  }
  const JobPart part{"run", bed.size(), job.ranks, interfaces};
  std::vector<std::vector<std::string>> commands;
  for (int k = 0; k < bed.size(); ++k) {
    std::vector<std::string> words = part.words(bed, k);
    for (const auto& [name, value] : choices) {
      words.insert(words.end(), {"--" + name, value});
    }
    for (const auto& [name, wanted] :
         {std::pair{"--encrypt", job.encrypt}, std::pair{"--checksums", job.checksums}}) {
      if (wanted) {
        words.emplace_back(name);
      }
    }
    words.emplace_back("--");
    words.insert(words.end(), job.command.begin(), job.command.end());
    commands.push_back(bed.on(k, words));
  }
  return run_together(commands);
}

int train_on(const TestBed& bed,
             int machines,
             const std::vector<std::string>& flags,
             const std::string& output) {
  const JobPart part{"train", machines, 1, "eth0"};
  std::vector<std::vector<std::string>> commands;
  for (int k = 0; k < machines; ++k) {
    // What is printed would stand between the lines of the benchmark.
    std::vector<std::string> words = {"sh",
                                      "-c",
                                      R"(out=$1; shift; exec "$@" >"$out" 2>&1)",
                                      "sh",
                                      output + "-" + std::to_string(k)};
    const std::vector<std::string> job = part.words(bed, k);
    words.insert(words.end(), job.begin(), job.end());
    words.insert(words.end(), flags.begin(), flags.end());
    commands.push_back(bed.on(k, words));
  }
  return run_together(commands);
}

}  // namespace trireme::bench
