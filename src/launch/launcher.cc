#include "trireme/launch/launcher.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/child.h"
#include "launch/job_setup.h"
#include "launch/line_printer.h"
#include "launch/placement.h"
#include "launch/signal_watch.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace trireme {
namespace {

using detail::concat;

// After a failure: time for the other ranks to notice it and write their flight records.
constexpr Milliseconds kTimeToNotice{700};
// For a reader of the output that has fallen behind when the ranks have ended.
constexpr Milliseconds kTimeToRead{600'000};

// Reads of 16 KiB from one stream: per turn of the loop, and after its rank has ended (what it
// wrote is all in the pipe then; only something it has left running could go on writing).
constexpr int kReadsPerTurn = 4;
constexpr int kReadsAtEnd = 64;

constexpr std::array kColours = {36, 33, 32, 35, 34, 91, 96, 93};

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
    const int code = verdict();
    finish_output();
    return code;
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
    detail::raise_descriptor_limit(options_.ranks);
    if (!options_.log_dir.empty()) {
      detail::make_log_dir(options_.log_dir);
    }
    open_report_pipe();
    // Whatever a rank starts and abandons becomes a child of the launcher, which ends it.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const auto places = detail::place_ranks(options_.ranks, allowed_cpus(), cpu_quota());
    const bool stdin_is_terminal = isatty(STDIN_FILENO) != 0;
    const auto identity = detail::make_job_identity(report_place_);
    ranks_.reserve(static_cast<std::size_t>(options_.ranks));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      detail::ChildOptions child;
      child.program = program;
      child.arguments = options_.command;
      child.placement = places[static_cast<std::size_t>(rank)];
      child.environment = detail::rank_environment(options_, identity, rank, child.placement);
      if (!options_.bind) {
        child.placement.cpus.clear();
      }
      child.inherits_input = rank == 0 && !stdin_is_terminal;
      child.inherits_output = rank == 0 && options_.rank0_speaks;
      child.kept_fd = report_writer_.get();
      ranks_.push_back({detail::start_child(child),
                        printer(output_, rank),
                        printer(errors_, rank),
                        {},
                        false,
                        0,
                        false,
                        std::nullopt});
    }
    report_writer_.reset();
    for (int rank = 0; rank < options_.ranks; ++rank) {
      open_log(rank);  // after the last fork: ranks have no business with each other's logs
    }
  }

  detail::LinePrinter printer(detail::OutputQueue& output, int rank) const {
    if (options_.rank0_speaks && options_.ranks == 1) {
      return {output, detail::LinePrinter::kNoLabel, -1};
    }
    const bool colour = isatty(output.fd()) != 0 && !env_string("NO_COLOR");
    return {output, rank, colour ? kColours[static_cast<std::size_t>(rank) % kColours.size()] : -1};
  }

  void open_log(int rank) {
    if (!options_.log_dir.empty()) {
      const std::string path = concat(options_.log_dir, "/rank-", rank, ".log");
      ranks_[static_cast<std::size_t>(rank)].log.open(path);
      TRIREME_CHECK(ranks_[static_cast<std::size_t>(rank)].log,
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
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0},
                                {report_reader_.get(), POLLIN, 0},
                                {output_.empty() ? -1 : output_.fd(), POLLOUT, 0},
                                {errors_.empty() ? -1 : errors_.fd(), POLLOUT, 0}};
    constexpr std::size_t kFirstRank = 4;
    for (const Rank& rank : ranks_) {
      // poll skips negative descriptors: of a stream that has ended, or that has to wait because
      // what it writes goes nowhere.
      entries.push_back({output_.full() ? -1 : rank.child.output.get(), POLLIN, 0});
      entries.push_back({errors_.full() ? -1 : rank.child.errors.get(), POLLIN, 0});
    }
    const std::int64_t limit = ending_ ? ending_->left().count() + 1 : 1000;
    poll(entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(limit, 1000)));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (entries[kFirstRank + 2 * i].revents != 0) {
        pump(ranks_[i], ranks_[i].child.output, ranks_[i].output, kReadsPerTurn);
      }
      if (entries[kFirstRank + 2 * i + 1].revents != 0) {
        pump(ranks_[i], ranks_[i].child.errors, ranks_[i].errors, kReadsPerTurn);
      }
    }
    flush_output();
    drain_reports();
    while (const int number = signals_.next()) {
      take_signal(number);
    }
    reap();
  }

  void flush_output() {
    output_.flush();
    errors_.flush();
    if ((output_.lost() || errors_.lost()) && !output_lost_) {
      output_lost_ = true;  // as with any program whose reader goes away
      begin_ending(SIGTERM);
    }
  }

  // At the end: what is still to be written, unless the reader does not read.
  void finish_output() {
    const Deadline patience(ending_ ? kTimeToNotice : kTimeToRead);
    while ((!output_.empty() || !errors_.empty()) && !patience.passed()) {
      pollfd entries[] = {{output_.empty() ? -1 : output_.fd(), POLLOUT, 0},
                          {errors_.empty() ? -1 : errors_.fd(), POLLOUT, 0},
                          {signals_.fd(), POLLIN, 0}};
      poll(entries, std::size(entries), 100);
      output_.flush();
      errors_.flush();
      if (detail::SignalWatch::asks_to_end(signals_.next())) {
        return;
      }
    }
  }

  // Reads what a stream holds now, a limited number of times, so that a rank that never stops
  // writing does not keep the launcher from everything else; closes the stream at its end.
  void pump(Rank& rank, FileDescriptor& stream, detail::LinePrinter& printer, int reads) {
    char buffer[16 << 10];
    while (stream.valid() && reads-- > 0) {
      const ssize_t got = read(stream.get(), buffer, sizeof(buffer));
      if (got > 0) {
        const std::string_view text(buffer, static_cast<std::size_t>(got));
        printer.add(text);
        write_log(rank, text);
      } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        stream.reset();
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }

  void write_log(Rank& rank, std::string_view text) {
    if (!rank.log.is_open()) {
      return;
    }
    rank.log << text << std::flush;
    if (!rank.log) {
      complain(concat("a log file in ",
                      options_.log_dir,
                      " can no longer be written: ",
                      detail::errno_text(errno)));
      rank.log.close();
    }
  }

  void drain_reports() {
    char buffer[4096];
    ssize_t got = -1;
    while (report_reader_.valid() &&
           (got = read(report_reader_.get(), buffer, sizeof(buffer))) > 0) {
      report_text_.append(buffer, static_cast<std::size_t>(got));
    }
    if (got == 0) {
      report_reader_.reset();  // every rank has closed it: there is nothing more to poll for
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
    if (detail::SignalWatch::asks_to_end(number)) {
      if (stopped_by_ != 0) {
        signal_all(SIGKILL);  // asked twice
      }
      stopped_by_ = number;
      begin_ending(number);
    } else if (detail::SignalWatch::is_passed_on(number)) {
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
        kill(rank.child.pid, number);  // it may have moved to another group
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
      pump(*found, found->child.output, found->output, kReadsAtEnd);
      pump(*found, found->child.errors, found->errors, kReadsAtEnd);
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
    ending_.emplace(time_to_end());
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
      ending_.emplace(time_to_end());
    }
  }

  Milliseconds time_to_end() const {
    return Milliseconds(static_cast<std::int64_t>(options_.end_seconds * 1000));
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

  void complain(const std::string& message) {
    errors_.push(concat(options_.name, ": ", message, "\n"));
  }

  // The rank to name: the first to fail that does not itself blame another rank that failed.
  int first_failure() const {
    for (const int rank : failures_) {
      const auto& report = ranks_[static_cast<std::size_t>(rank)].report;
      const bool follows =
          report && report->blamed >= 0 && report->blamed != rank &&
          std::find(failures_.begin(), failures_.end(), report->blamed) != failures_.end();
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

  int verdict() {
    if (failures_.empty()) {
      if (stopped_by_ != 0) {
        complain(concat("stopped by signal ", stopped_by_, " (", strsignal(stopped_by_), ")"));
        return 128 + stopped_by_;
      }
      return output_lost_ ? 128 + SIGPIPE : kExitOk;
    }
    const int number = first_failure();
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (options_.rank0_speaks && ranks_[0].failed() && !ranks_[0].errors.last_lines().empty()) {
      // It has said what happened, for all of them.
      const int status = ranks_[0].status;
      return WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage ? kExitUsage : kExitRankFailed;
    }
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
  detail::SignalWatch signals_;
  detail::OutputQueue output_{STDOUT_FILENO};
  detail::OutputQueue errors_{STDERR_FILENO};
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
