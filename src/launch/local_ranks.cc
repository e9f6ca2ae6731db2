#include "launch/local_ranks.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
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

// Beside their ends, what waitpid tells of processes.
constexpr int kChanges = WUNTRACED | WCONTINUED;

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
  raise_descriptor_limit(options_);
  if (!options_.log_dir.empty()) {
    make_log_dir(options_.log_dir);
  }
  open_report_pipe();
  left_behind_.emplace();
}

void LocalRanks::start(JobIdentity identity, FileDescriptor listener) {
  identity.report_place = std::move(identity_.report_place);
  if (listener.valid()) {
    listener_ = std::move(listener);
  }
  identity.rank0_listener = listener_.get();
  if (identity.job != identity_.job) {
    kept_memory_.clear();  // of another job
    counts_ = counts_before_ = {};
    reached_ = {};
  }
  identity_ = std::move(identity);
  appends_logs_ |= !identity_.begins;
  first_log_ = identity_.first_rank;
  placements_ = place_ranks(options_.ranks, allowed_cpus(), cpu_quota());
  if (options_.elastic && options_.elastic->most > options_.ranks) {
    for (Placement& placement : placements_) {
      placement.cpus.clear();  // others may come
    }
  }
  const auto count = static_cast<std::size_t>(identity_.local_size);
  ranks_.reserve(count);
  for (std::size_t place = 0; place < count; ++place) {
    ranks_.push_back(start_rank(place, identity_.first_rank + static_cast<int>(place)));
  }
  if (!options_.elastic) {
    report_writer_.reset();
    listener_.reset();  // when rank 0 ends, nobody may seem to listen
  }
  if (!options_.log_dir.empty()) {
    // After the last fork: ranks have no business with each other's logs.
    for (std::size_t place = 0; place < ranks_.size(); ++place) {
      ranks_[place].open_log(log_of(place), options_.append_logs || appends_logs_);
    }
  }
}

// Of a process: in an elastic job its rank may change.
std::string LocalRanks::log_of(std::size_t place) const {
  const int rank = first_log_ + static_cast<int>(place);
  return concat(options_.log_dir, "/rank-", rank, ".log");
}

RankProcess LocalRanks::start_rank(std::size_t place, int rank) {
  ChildOptions child;
  child.program = program_;
  child.arguments = options_.command;
  child.placement = placements_[std::min(place, placements_.size() - 1)];
  child.environment =
      rank_environment(options_, identity_, rank - identity_.first_rank, child.placement);
  if (!options_.bind) {
    child.placement.cpus.clear();
  }
  child.inherits_input = rank == 0 && isatty(STDIN_FILENO) == 0 && identity_.epoch == 0;
  // Another process may be rank 0 in the next epoch: what it says comes through us.
  child.inherits_output = rank == 0 && options_.rank0_speaks && !options_.elastic;
  child.kept_fds = {report_writer_.get()};
  if (rank == 0 && listener_.valid()) {
    child.kept_fds.push_back(listener_.get());
  }
  for (const auto& [variable, descriptor] : shared_) {
    child.kept_fds.push_back(descriptor);
    child.environment.push_back(concat(variable, "=", descriptor));
  }
  PulseMemory pulse;
  tell_history(pulse);
  child.kept_fds.push_back(pulse.descriptor());
  child.environment.push_back(concat(kEnvPulse, "=", pulse.descriptor()));
  FileDescriptor ours;
  FileDescriptor theirs;
  if (options_.elastic) {
    int fds[2];
    TRIREME_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0,
                  "a socket for rank {} could not be made: {}; raise the limit on open files "
                  "(ulimit -n)",
                  {rank, errno_text(errno)});
    ours = FileDescriptor(fds[0]);
    theirs = FileDescriptor(fds[1]);
    child.kept_fds.push_back(theirs.get());
    child.environment.push_back(concat(kEnvMembership, "=", theirs.get()));
  }
  RankProcess process(start_child(child),
                      std::move(pulse),
                      {*outlets_.output, LinePrinter::kNoLabel, -1},
                      {*outlets_.errors, LinePrinter::kNoLabel, -1});
  process.rank = rank;
  process.pulse.close();
  process.membership = std::move(ours);
  label(process);
  return process;
}

void LocalRanks::label(RankProcess& process) const {
  const int rank = process.rank;
  const auto label = [&](LinePrinter& printer, const OutputQueue& output, bool plain) {
    const bool colour = isatty(output.fd()) != 0 && !env_string("NO_COLOR");
    printer.relabel(plain ? LinePrinter::kNoLabel : rank,
                    colour ? kColours[static_cast<std::size_t>(rank) % kColours.size()] : -1);
  };
  const bool plain = options_.rank0_speaks && rank == 0;
  label(process.output, *outlets_.output, plain);
  label(process.errors, *outlets_.errors, plain);
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
  for (const RankProcess& rank : ranks_) {
    // One that has ended is at the end of its socket, too: that is no news.
    entries.push_back({rank.ended ? -1 : rank.membership.get(), POLLIN, 0});
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
    if (FailureReport::parse(report_text_.substr(0, end), &report)) {
      for (RankProcess& rank : ranks_) {
        if (rank.rank == report.rank) {
          rank.report = report;
        }
      }
    }
    report_text_.erase(0, end + 1);
  }
}

std::vector<JobEvent> LocalRanks::reap() {
  // Only a look: it may be a child that the caller had before, and waits for itself.
  siginfo_t any{};
  if (waitid(P_ALL, 0, &any, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) == 0 &&
      any.si_pid == 0) {
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
    pid_t ended = waitpid(rank.child.pid, &status, WNOHANG | kChanges);
    while (ended == rank.child.pid && (WIFSTOPPED(status) || WIFCONTINUED(status))) {
      rank.note_stopped(WIFSTOPPED(status));
      ended = waitpid(rank.child.pid, &status, WNOHANG | kChanges);
    }
    if (ended < 0 && errno == ECHILD) {
      outlets_.say(concat(
          "rank {} has ended; expected its exit code, found that this process ignores SIGCHLD or "
          "has waited for it elsewhere. It is counted as failed: leave the ranks to launch()",
          {rank.rank}));
      constexpr int kUnknown = 255 << 8;
      status = kUnknown;
      ended = rank.child.pid;
    }
    if (ended != rank.child.pid) {
      running.push_back(rank.child.pid);
      continue;
    }
    check_log(rank.finish(status));
    if (rank.failed() || (options_.elastic && rank.was_cut_short())) {
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
    events.push_back(ranks_[i].failure(/*alone=*/identity_.world_size == 1));
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

void LocalRanks::end_all() {
  while (!all_ended()) {
    send_signal(SIGKILL);
    reap();
    usleep(1000);
  }
  end_left_behind();
  reached_ = reached();
  ranks_.clear();
  appends_logs_ = true;
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
  const auto found = std::find_if(
      ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.rank == 0; });
  return found == ranks_.end() ? nullptr : &*found;
}

}  // namespace trireme::detail
