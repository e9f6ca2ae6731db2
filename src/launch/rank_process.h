#pragma once

#include <chrono>
#include <fstream>
#include <optional>
#include <string>

#include "launch/child.h"
#include "launch/job_event.h"
#include "launch/line_printer.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {

// One rank of this machine: its process, its output, and how it ended.
struct RankProcess {
  Child child;
  LinePrinter output;
  LinePrinter errors;
  PulseMemory pulse;          // what it lets us see
  FileDescriptor membership;  // our end of the socket, in an elastic job
  int rank = -1;              // in the epoch at hand; -1: it was told to leave
  bool asks = false;          // for its place in the next
  bool wants_memory = false;  // that is kept
  std::optional<std::chrono::steady_clock::time_point> stopped;  // by a signal, since when
  std::ofstream log;
  bool ended = false;
  int status = 0;            // of waitpid
  bool told_to_end = false;  // by the launcher: what it does then is no failure of its own
  std::optional<FailureReport> report;

  RankProcess(Child process,
              PulseMemory memory,
              LinePrinter output_printer,
              LinePrinter errors_printer);

  // Has a part in the epoch at hand.
  bool is_member() const { return !ended && rank >= 0; }
  bool failed() const { return ended && status != 0 && !told_to_end; }
  // Killed by a signal that asks to end, before it could take it: others may wait for it.
  bool was_cut_short() const;
  // How it failed, with its last words. `alone`: there is no other rank whose lines could have come
  // after them.
  JobEvent failure(bool alone) const;

  // Throws ConfigError when the file cannot be written.
  void open_log(const std::string& path, bool append);

  // Reads what the streams hold now, a limited number of times, so that a rank that never stops
  // writing does not keep the launcher from everything else; closes a stream at its end. 0, or the
  // errno value with which the log has just failed.
  int pump_output();
  int pump_errors();
  // The process has ended: what it wrote is all in the pipes.
  int finish(int wait_status);

  // A signal has stopped it, or it runs again.
  void note_stopped(bool is);

  // To it and to its process group.
  void send_signal(int number) const;

 private:
  int pump(FileDescriptor& stream, LinePrinter& printer, int reads);
  int write_log(std::string_view text);
};

}  // namespace trireme::detail
