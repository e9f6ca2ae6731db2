#include "launch/rank_process.h"

#include <cerrno>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// Reads of 16 KiB from one stream: per turn of the loop, and after its rank has ended (what it
// wrote is all in the pipe then; only something it has left running could go on writing).
constexpr int kReadsPerTurn = 4;
constexpr int kReadsAtEnd = 64;

}  // namespace

RankProcess::RankProcess(Child process,
                         PulseMemory memory,
                         LinePrinter output_printer,
                         LinePrinter errors_printer)
    : child(std::move(process)),
      output(std::move(output_printer)),
      errors(std::move(errors_printer)),
      pulse(std::move(memory)) {}

bool RankProcess::was_cut_short() const {
  return ended && told_to_end && rank >= 0 && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL;
}

JobEvent RankProcess::failure(bool alone) const {
  JobEvent event;
  event.kind = JobEvent::Kind::kRankFailed;
  event.number = status;
  event.rank = rank;
  event.pid = child.pid;
  if (report) {
    event.blamed = report->blamed;
    event.rendezvous_timed_out = report->rendezvous_timed_out;
  }
  // Not where they can be read right above: the errors of a rank that is alone, and what the one
  // that speaks for the job has said for it.
  const bool has_errors = !errors.last_lines().empty();
  const auto& words = has_errors ? errors.last_lines() : output.last_lines();
  if (has_errors ? !alone : output.has_label()) {
    event.last_words.assign(words.begin(), words.end());
  }
  return event;
}

void RankProcess::open_log(const std::string& path, bool append) {
  log.open(path, append ? std::ios::app : std::ios::out);
  TRIREME_CHECK(log, "the log file \"", path, "\" cannot be written: ", errno_text(errno));
}

int RankProcess::pump_output() {
  return pump(child.output, output, kReadsPerTurn);
}

int RankProcess::pump_errors() {
  return pump(child.errors, errors, kReadsPerTurn);
}

int RankProcess::finish(int wait_status) {
  ended = true;
  status = wait_status;
  const int first = pump(child.output, output, kReadsAtEnd);
  const int second = pump(child.errors, errors, kReadsAtEnd);
  output.finish();
  errors.finish();
  return first != 0 ? first : second;
}

void RankProcess::note_stopped(bool is) {
  if (!is) {
    stopped.reset();
  } else if (!stopped) {
    stopped = std::chrono::steady_clock::now();
  }
}

void RankProcess::send_signal(int number) const {
  kill(-child.pid, number);
  kill(child.pid, number);  // it may have moved to another group
}

int RankProcess::pump(FileDescriptor& stream, LinePrinter& printer, int reads) {
  char buffer[16 << 10];
  int trouble = 0;
  while (stream.valid() && reads-- > 0) {
    const ssize_t got = read(stream.get(), buffer, sizeof(buffer));
    if (got > 0) {
      const std::string_view text(buffer, static_cast<std::size_t>(got));
      printer.add(text);
      const int error = write_log(text);
      trouble = error != 0 ? error : trouble;
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      stream.reset();
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return trouble;
}

int RankProcess::write_log(std::string_view text) {
  if (!log.is_open()) {
    return 0;
  }
  log << text << std::flush;
  if (log) {
    return 0;
  }
  const int error = errno;
  log.close();
  return error;
}

}  // namespace trireme::detail
