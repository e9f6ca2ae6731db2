#include "trireme/launch/launcher.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/child.h"
#include "launch/line_printer.h"
#include "launch/placement.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

extern char** environ;  // NOLINT: POSIX gives the environment only by this name

namespace trireme {
namespace {

using detail::concat;

// After a failure: time for the other ranks to notice it and write their flight records, then time
// to end in good order after SIGTERM.
constexpr Milliseconds kTimeToNotice{700};
constexpr Milliseconds kTimeToEnd{3000};

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kPassedSignals = {SIGUSR1, SIGUSR2, SIGCONT};
constexpr std::array kColours = {36, 33, 32, 35, 34, 91, 96, 93};

template <class Array>
bool contains(const Array& array, int value) {
  return std::find(array.begin(), array.end(), value) != array.end();
}

std::string random_hex(std::size_t bytes) {
  if (sodium_init() < 0) {
    throw InternalError("libsodium cannot find a source of random numbers");
  }
  std::vector<unsigned char> raw(bytes);
  randombytes_buf(raw.data(), raw.size());
  std::string hex(2 * bytes + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), raw.data(), raw.size());
  hex.pop_back();
  return hex;
}

// Blocks the signals the launcher reads through a signalfd, and restores everything at the end.
class SignalWatch {
 public:
  SignalWatch() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : kEndingSignals) {
      sigaddset(&set, number);
    }
    for (const int number : kPassedSignals) {
      sigaddset(&set, number);
    }
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTSTP);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    TRIREME_CHECK(fd_.valid(), "signalfd failed: ", detail::errno_text(errno));
  }
  ~SignalWatch() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that has come; 0 when there is none.
  int next() const {
    signalfd_siginfo info{};
    return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_{};
  FileDescriptor fd_;
};

// One rank: its process, its output, and how it ended.
struct Rank {
  detail::Child child;
  detail::LinePrinter output;
  detail::LinePrinter errors;
  std::ofstream log;
  bool ended = false;
  int status = 0;            // of waitpid
  bool told_to_end = false;  // by the launcher: what it does then is no failure of its own
  std::optional<FailureReport> report;

  bool failed() const { return ended && status != 0 && !told_to_end; }
};

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {}

  int run() {
    start();
    while (!all_ended()) {
      wait_for_events();
      end_after_failure();
    }
    drain_reports();
    end_descendants();
    return verdict();
  }

  ~Job() {
    // Only after an exception: the ranks that were started must not outlive it.
    signal_all(SIGKILL);
    for (Rank& rank : ranks_) {
      if (!rank.ended) {
        waitpid(rank.child.pid, nullptr, 0);
      }
    }
    end_descendants();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

 private:
  // --- starting

  void start() {
    const std::string program = detail::find_program(options_.command.front());
    raise_descriptor_limit();
    make_log_dir();
    open_report_pipe();
    // Whatever a rank starts and abandons becomes a child of the launcher, which ends it.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const auto places = detail::place_ranks(options_.ranks, allowed_cpus(), cpu_quota());
    const bool stdin_is_terminal = isatty(STDIN_FILENO) != 0;
    const std::string job = random_hex(8);
    const std::string token = random_hex(32);
    ranks_.reserve(static_cast<std::size_t>(options_.ranks));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      detail::ChildOptions child;
      child.program = program;
      child.arguments = options_.command;
      child.placement = places[static_cast<std::size_t>(rank)];
      child.environment = environment_of(rank, child.placement, job, token);
      if (!options_.bind) {
        child.placement.cpus.clear();
      }
      child.inherits_input = rank == 0 && !stdin_is_terminal;
      child.kept_fd = report_writer_.get();
      ranks_.push_back({detail::start_child(child),
                        printer(STDOUT_FILENO, rank),
                        printer(STDERR_FILENO, rank),
                        {},
                        false,
                        0,
                        false,
                        std::nullopt});
      open_log(rank);
    }
    report_writer_.reset();
  }

  static detail::LinePrinter printer(int fd, int rank) {
    const bool colour = isatty(fd) != 0 && !env_string("NO_COLOR");
    return {fd, rank, colour ? kColours[static_cast<std::size_t>(rank) % kColours.size()] : -1};
  }

  std::vector<std::string> environment_of(int rank,
                                          const detail::Placement& place,
                                          const std::string& job,
                                          const std::string& token) const {
    std::vector<std::string> ours = {concat(kEnvRank, "=", rank),
                                     concat(kEnvSize, "=", options_.ranks),
                                     concat(kEnvLocalRank, "=", rank),
                                     concat(kEnvLocalSize, "=", options_.ranks),
                                     concat(kEnvJob, "=", job),
                                     concat(kEnvToken, "=", token),
                                     concat(kEnvReport, "=", report_place_)};
    if (options_.timeout_seconds) {
      ours.push_back(concat(kEnvTimeout, "=", *options_.timeout_seconds));
    }
    if (!options_.log_dir.empty()) {
      ours.push_back(concat(kEnvLogDir, "=", std::filesystem::absolute(options_.log_dir).string()));
    }
    for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
      if (options_.threads || !env_string(name)) {
        ours.push_back(concat(name, "=", options_.threads.value_or(place.threads)));
      }
    }
    ours.insert(ours.end(), options_.environment.begin(), options_.environment.end());
    std::vector<std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const std::string name = text.substr(0, text.find('=') + 1);
      if (std::none_of(ours.begin(), ours.end(), [&](const std::string& other) {
            return other.starts_with(name);
          })) {
        all.push_back(text);
      }
    }
    all.insert(all.end(), ours.begin(), ours.end());
    return all;
  }

  void raise_descriptor_limit() const {
    const auto needed = static_cast<rlim_t>(options_.ranks) * 3 + 32;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
      return;
    }
    TRIREME_CHECK(limit.rlim_max >= needed,
                  options_.ranks,
                  " ranks need ",
                  needed,
                  " open files, the limit is ",
                  limit.rlim_max,
                  ": raise it (ulimit -Hn) or start fewer");
    limit.rlim_cur = needed;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  void make_log_dir() const {
    if (options_.log_dir.empty()) {
      return;
    }
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    TRIREME_CHECK(
        !error, "the log folder \"", options_.log_dir, "\" cannot be created: ", error.message());
    TRIREME_CHECK(access(options_.log_dir.c_str(), W_OK) == 0,
                  "the log folder \"",
                  options_.log_dir,
                  "\" cannot be written: ",
                  detail::errno_text(errno));
  }

  void open_log(int rank) {
    if (!options_.log_dir.empty()) {
      const std::string path = concat(options_.log_dir, "/rank-", rank, ".log");
      ranks_.back().log.open(path);
      TRIREME_CHECK(ranks_.back().log,
                    "the log file \"",
                    path,
                    "\" cannot be written: ",
                    detail::errno_text(errno));
    }
  }

  void open_report_pipe() {
    int fds[2];
    TRIREME_CHECK(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0,
                  "a pipe could not be created: ",
                  detail::errno_text(errno));
    report_reader_ = FileDescriptor(fds[0]);
    report_writer_ = FileDescriptor(fds[1]);
    struct stat status {};
    fstat(fds[1], &status);
    report_place_ = concat(fds[1], ":", status.st_ino);
  }

  // --- running

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }

  void wait_for_events() {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}, {report_reader_.get(), POLLIN, 0}};
    for (const Rank& rank : ranks_) {
      entries.push_back({rank.child.output.get(), POLLIN, 0});  // negative once closed: skipped
      entries.push_back({rank.child.errors.get(), POLLIN, 0});
    }
    const std::int64_t limit = ending_ ? ending_->left().count() + 1 : 1000;
    poll(entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(limit, 1000)));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (entries[2 + 2 * i].revents != 0) {
        pump(ranks_[i], ranks_[i].child.output, ranks_[i].output);
      }
      if (entries[3 + 2 * i].revents != 0) {
        pump(ranks_[i], ranks_[i].child.errors, ranks_[i].errors);
      }
    }
    drain_reports();
    while (const int number = signals_.next()) {
      take_signal(number);
    }
    reap();
  }

  // Reads what a stream holds now; closes it at its end.
  void pump(Rank& rank, FileDescriptor& stream, detail::LinePrinter& printer) {
    char buffer[16 << 10];
    while (stream.valid()) {
      const ssize_t got = read(stream.get(), buffer, sizeof(buffer));
      if (got > 0) {
        const std::string_view text(buffer, static_cast<std::size_t>(got));
        printer.add(text);
        if (rank.log.is_open()) {
          rank.log << text << std::flush;
          if (!rank.log) {
            complain(concat("a log file in ",
                            options_.log_dir,
                            " can no longer be written: ",
                            detail::errno_text(errno)));
            rank.log.close();
          }
        }
        continue;
      }
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0 && errno == EAGAIN) {
        break;
      }
      stream.reset();
    }
    if (!printer.readable() && !output_lost_) {
      output_lost_ = true;  // as with any program whose reader goes away
      begin_ending(SIGTERM);
    }
  }

  void drain_reports() {
    char buffer[4096];
    for (ssize_t got = 0; (got = read(report_reader_.get(), buffer, sizeof(buffer))) > 0;) {
      report_text_.append(buffer, static_cast<std::size_t>(got));
    }
    for (std::size_t end = 0; (end = report_text_.find('\n')) != std::string::npos;) {
      FailureReport report;
      if (FailureReport::parse(report_text_.substr(0, end), &report) && report.rank >= 0 &&
          report.rank < options_.ranks) {
        ranks_[static_cast<std::size_t>(report.rank)].report = report;
      }
      report_text_.erase(0, end + 1);
    }
  }

  void take_signal(int number) {
    if (contains(kEndingSignals, number)) {
      if (stopped_by_ != 0) {
        signal_all(SIGKILL);  // asked twice
      }
      stopped_by_ = number;
      begin_ending(number);
    } else if (contains(kPassedSignals, number)) {
      signal_all(number);
    } else if (number == SIGTSTP) {
      signal_all(SIGTSTP);
      raise(SIGSTOP);
      signal_all(SIGCONT);
    }
  }

  void signal_all(int number) {
    for (const Rank& rank : ranks_) {
      if (!rank.ended) {
        kill(-rank.child.pid, number);
      }
    }
  }

  void reap() {
    for (;;) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) {
        return;
      }
      const auto found = std::find_if(
          ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.child.pid == pid; });
      if (found == ranks_.end()) {
        continue;  // something a rank had abandoned
      }
      found->ended = true;
      found->status = status;
      pump(*found, found->child.output, found->output);
      pump(*found, found->child.errors, found->errors);
      found->output.finish();
      found->errors.finish();
      if (found->failed()) {
        failures_.push_back(static_cast<int>(found - ranks_.begin()));
      }
    }
  }

  // --- ending

  void begin_ending(int number) {
    for (Rank& rank : ranks_) {
      rank.told_to_end |= !rank.ended;
    }
    signal_all(number);
    signal_all(SIGCONT);  // a stopped process takes no signal but this and SIGKILL
    ending_.emplace(kTimeToEnd);
    asked_to_end_ = true;
  }

  // Moves on from a failure: time to notice, SIGTERM, SIGKILL.
  void end_after_failure() {
    if (!failures_.empty() && !ending_) {
      ending_.emplace(kTimeToNotice);
    }
    if (!ending_ || !ending_->passed() || all_ended()) {
      return;
    }
    if (!asked_to_end_) {
      begin_ending(SIGTERM);
    } else {
      signal_all(SIGKILL);
      ending_.emplace(kTimeToEnd);
    }
  }

  // What the ranks started and left running has become this process's children.
  static void end_descendants() {
    for (;;) {
      std::ifstream file(concat("/proc/self/task/", getpid(), "/children"));
      bool any = false;
      for (pid_t pid = 0; file >> pid;) {
        any = true;
        kill(pid, SIGKILL);
      }
      if (!any && waitpid(-1, nullptr, WNOHANG) <= 0) {
        return;
      }
      if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) {
        return;
      }
    }
  }

  // --- saying what happened

  static void complain(const std::string& message) {
    const std::string line = concat("trireme run: ", message, "\n");
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  }

  // The rank to name: the first to fail that does not itself blame another rank that failed.
  int first_failure() const {
    for (const int rank : failures_) {
      const auto& report = ranks_[static_cast<std::size_t>(rank)].report;
      const bool follows = report && report->blamed >= 0 && report->blamed != rank &&
                           contains(failures_, report->blamed);
      if (!follows) {
        return rank;
      }
    }
    return failures_.front();
  }

  static std::string how_it_ended(int status) {
    if (WIFSIGNALED(status)) {
      return concat(
          "was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
    }
    return concat("failed with exit code ", WEXITSTATUS(status));
  }

  int verdict() const {
    if (failures_.empty()) {
      if (stopped_by_ != 0) {
        complain(concat("stopped by signal ", stopped_by_, " (", strsignal(stopped_by_), ")"));
        return 128 + stopped_by_;
      }
      return output_lost_ ? 128 + SIGPIPE : kExitOk;
    }
    const int number = first_failure();
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    complain(concat("rank ",
                    number,
                    " of ",
                    options_.ranks,
                    " (pid ",
                    rank.child.pid,
                    ") ",
                    how_it_ended(rank.status)));
    const auto& words =
        rank.errors.last_lines().empty() ? rank.output.last_lines() : rank.errors.last_lines();
    if (!words.empty()) {
      complain(concat("last words of rank ", number, ":"));
      for (const std::string& line : words) {
        complain("  " + line);
      }
    }
    return rank.report && rank.report->rendezvous_timed_out ? kExitRendezvousTimedOut
                                                            : kExitRankFailed;
  }

  const LaunchOptions& options_;
  SignalWatch signals_;
  FileDescriptor report_reader_;
  FileDescriptor report_writer_;
  std::string report_place_;
  std::string report_text_;
  std::vector<Rank> ranks_;
  std::vector<int> failures_;  // in the order they were seen
  std::optional<Deadline> ending_;
  bool asked_to_end_ = false;
  bool output_lost_ = false;
  int stopped_by_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  TRIREME_CHECK(!options.command.empty(), "no program to run was given");
  TRIREME_CHECK(options.ranks >= 1, "a job has at least one rank, found ", options.ranks);
  TRIREME_CHECK(!options.threads || *options.threads >= 1,
                "a rank has at least one thread, found ",
                *options.threads);
  return Job(options).run();
}

}  // namespace trireme
