#include "launch/local_ranks.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/child.h"
#include "launch/placement.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace trireme::detail {
namespace {

constexpr std::array kColours = {36, 33, 32, 35, 34, 91, 96, 93};

}  // namespace

LocalRanks::~LocalRanks() {
  send_signal(SIGKILL);
  for (const RankProcess& rank : ranks_) {
    if (!rank.ended) {
      while (waitpid(rank.child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
  end_left_behind();
}

void LocalRanks::prepare() {
  program_ = find_program(options_.command.front());
  raise_descriptor_limit(options_.ranks, options_.nodes);
  if (!options_.log_dir.empty()) {
    make_log_dir(options_.log_dir);
  }
  open_report_pipe();
  left_behind_.emplace();
}

void LocalRanks::start(JobIdentity identity, FileDescriptor rank0_listener) {
  identity.report_place = std::move(identity_.report_place);
  identity.rank0_listener = rank0_listener.get();
  identity_ = std::move(identity);
  const auto places = place_ranks(options_.ranks, allowed_cpus(), cpu_quota());
  const bool stdin_is_terminal = isatty(STDIN_FILENO) != 0;
  ranks_.reserve(static_cast<std::size_t>(options_.ranks));
  for (int local = 0; local < options_.ranks; ++local) {
    const int rank = identity_.first_rank + local;
    ChildOptions child;
    child.program = program_;
    child.arguments = options_.command;
    child.placement = places[static_cast<std::size_t>(local)];
    child.environment = rank_environment(options_, identity_, local, child.placement);
    if (!options_.bind) {
      child.placement.cpus.clear();
    }
    child.inherits_input = rank == 0 && !stdin_is_terminal;
    child.inherits_output = rank == 0 && options_.rank0_speaks;
    child.kept_fds = {report_writer_.get()};
    if (rank == 0 && rank0_listener.valid()) {
      child.kept_fds.push_back(rank0_listener.get());
    }
    ranks_.emplace_back(
        start_child(child), printer(*outlets_.output, rank), printer(*outlets_.errors, rank));
  }
  report_writer_.reset();
  if (!options_.log_dir.empty()) {
    // After the last fork: ranks have no business with each other's logs.
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].open_log(concat(options_.log_dir, "/rank-", rank_at(i), ".log"),
                         options_.append_logs);
    }
  }
  // The listener is closed here: when rank 0 ends, nobody may seem to listen.
}

LinePrinter LocalRanks::printer(OutputQueue& output, int rank) const {
  if (options_.rank0_speaks && identity_.world_size == 1) {
    return {output, LinePrinter::kNoLabel, -1};
  }
  const bool colour = isatty(output.fd()) != 0 && !env_string("NO_COLOR");
  return {output, rank, colour ? kColours[static_cast<std::size_t>(rank) % kColours.size()] : -1};
}

void LocalRanks::open_report_pipe() {
  int fds[2];
  TRIREME_CHECK(
      pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe could not be created: ", errno_text(errno));
  report_reader_ = FileDescriptor(fds[0]);
  report_writer_ = FileDescriptor(fds[1]);
  struct stat status {};
  fstat(fds[1], &status);
  identity_.report_place = concat(fds[1], ":", status.st_ino);
}

void LocalRanks::add_to(std::vector<pollfd>& entries) {
  entries.push_back({report_reader_.get(), POLLIN, 0});
  first_entry_ = entries.size();
  for (const RankProcess& rank : ranks_) {
    // poll skips negative descriptors: of a stream that has ended, or that has to wait because
    // what it writes goes nowhere.
    entries.push_back({outlets_.output->full() ? -1 : rank.child.output.get(), POLLIN, 0});
    entries.push_back({outlets_.errors->full() ? -1 : rank.child.errors.get(), POLLIN, 0});
  }
}

void LocalRanks::take_output(const std::vector<pollfd>& entries) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (entries[first_entry_ + 2 * i].revents != 0) {
      check_log(ranks_[i].pump_output());
    }
    if (entries[first_entry_ + 2 * i + 1].revents != 0) {
      check_log(ranks_[i].pump_errors());
    }
  }
  drain_reports();
}

void LocalRanks::check_log(int error) const {
  if (error != 0) {
    outlets_.say(concat(
        "a log file in ", options_.log_dir, " can no longer be written: ", errno_text(error)));
  }
}

void LocalRanks::drain_reports() {
  char buffer[4096];
  ssize_t got = -1;
  while (report_reader_.valid() && (got = read(report_reader_.get(), buffer, sizeof(buffer))) > 0) {
    report_text_.append(buffer, static_cast<std::size_t>(got));
  }
  if (got == 0) {
    report_reader_.reset();  // every rank has closed it: there is nothing more to poll for
  }
  for (std::size_t end = 0; (end = report_text_.find('\n')) != std::string::npos;) {
    FailureReport report;
    if (FailureReport::parse(report_text_.substr(0, end), &report) &&
        report.rank >= identity_.first_rank &&
        report.rank < identity_.first_rank + options_.ranks) {
      ranks_[static_cast<std::size_t>(report.rank - identity_.first_rank)].report = report;
    }
    report_text_.erase(0, end + 1);
  }
}

std::vector<JobEvent> LocalRanks::reap() {
  // Only a look: it may be a child that the caller had before, and waits for itself.
  siginfo_t any{};
  if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) == 0 && any.si_pid == 0) {
    return {};
  }
  std::vector<std::size_t> failed;
  std::vector<pid_t> running;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& rank = ranks_[i];
    if (rank.ended) {
      continue;
    }
    int status = 0;
    pid_t ended = waitpid(rank.child.pid, &status, WNOHANG);
    if (ended < 0 && errno == ECHILD) {
      outlets_.say(concat(
          "rank {} has ended; expected its exit code, found that this process ignores SIGCHLD or "
          "has waited for it elsewhere. It is counted as failed: leave the ranks to launch()",
          {rank_at(i)}));
      constexpr int kUnknown = 255 << 8;
      status = kUnknown;
      ended = rank.child.pid;
    }
    if (ended != rank.child.pid) {
      running.push_back(rank.child.pid);
      continue;
    }
    check_log(rank.finish(status));
    if (rank.failed()) {
      failed.push_back(i);
    }
  }
  left_behind_->reap(running);
  if (!failed.empty()) {
    drain_reports();  // each wrote its own before it ended
  }
  std::vector<JobEvent> events;
  events.reserve(failed.size());
  for (const std::size_t i : failed) {
    events.push_back(ranks_[i].failure(rank_at(i)));
  }
  return events;
}

void LocalRanks::end_left_behind() const {
  if (left_behind_) {
    left_behind_->end(identity_.job);
  }
}

bool LocalRanks::all_ended() const {
  return std::all_of(
      ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.ended; });
}

void LocalRanks::send_signal(int number) const {
  for (const RankProcess& rank : ranks_) {
    if (!rank.ended) {
      rank.send_signal(number);
    }
  }
}

void LocalRanks::tell_to_end(int number) {
  for (RankProcess& rank : ranks_) {
    rank.told_to_end |= !rank.ended;
  }
  send_signal(number);
  send_signal(SIGCONT);  // a stopped process takes no signal but this and SIGKILL
}

const RankProcess* LocalRanks::rank0() const {
  return identity_.first_rank == 0 && !ranks_.empty() ? ranks_.data() : nullptr;
}

}  // namespace trireme::detail
