#include "launch/fleet_meeting.h"

#include <cstring>
#include <numeric>

#include <signal.h>
#include <unistd.h>

#include "comm/rendezvous/packing.h"
#include "trireme/core/index.h"
#include "trireme/core/printable.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLongestText = 256;

}  // namespace

std::string MachineHello::name() const {
  return concat("machine ", machine, " (", host, "), pid ", pid);
}

std::string host_name() {
  char host[kLongestText] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

MachineHello make_machine_hello(const MeetingOptions& options) {
  return {TRIREME_VERSION,
          options.machine,
          options.machines,
          options.ranks,
          getpid(),
          host_name(),
          options.lease,
          options.listener_port,
          options.encrypt,
          options.world};
}

std::string pack_hello(const MachineHello& hello) {
  return Packer()
      .text(hello.library)
      .number(hello.machine)
      .number(hello.machines)
      .number(hello.ranks)
      .number(hello.pid)
      .text(hello.host)
      .number(hello.lease.count())
      .number(hello.listener_port)
      .number(hello.encrypt ? 1 : 0)
      .text(hello.world)
      .take();
}

bool unpack_hello(const std::string& bytes, MachineHello* hello) {
  Unpacker fields(bytes);
  hello->library = printable(fields.text(), kLongestText);
  hello->machine = fields.number_in(-kAny, kAny);
  hello->machines = fields.number_in(-kAny, kAny);
  hello->ranks = fields.number_in(1, 1 << 20);
  hello->pid = fields.number_in(0, kAny);
  hello->host = printable(fields.text(), kLongestText);
  hello->lease = Milliseconds(fields.number_in(0, kAny));
  hello->listener_port = fields.number_in(0, 65535);
  hello->encrypt = fields.number_in(0, 1) == 1;
  hello->world = fields.text();
  return fields.complete();
}

int Roster::first_rank() const {
  return std::accumulate(ranks.begin(), ranks.begin() + machine, 0);
}

int Roster::world_size() const {
  return std::accumulate(ranks.begin(), ranks.end(), 0);
}

int Roster::machine_of(int rank) const {
  int found = 0;
  for (const int count : ranks) {
    if (rank < count) {
      return found;
    }
    rank -= count;
    ++found;
  }
  return -1;
}

std::string Roster::name_of(int number) const {
  const bool is_known = index(number) < hosts.size() && !hosts[index(number)].empty();
  return is_known ? concat("machine ", number, " (", hosts[index(number)], ")")
                  : concat("machine ", number);
}

Roster meet_launchers(const MeetingOptions& options) {
  return options.machine == options.leader ? host_launchers(options) : join_launchers(options);
}

std::string pack_start(const Roster& roster, int rank0_port, bool with_token) {
  Packer fields;
  fields.text(roster.job).text(with_token ? roster.token : "").number(rank0_port);
  fields.number(roster.joins ? 1 : 0).text(roster.drill);
  fields.texts(roster.hosts);
  for (const int count : roster.ranks) {
    fields.number(count);
  }
  return fields.take();
}

bool unpack_start(const std::string& bytes, Roster* roster, int* rank0_port) {
  Unpacker fields(bytes);
  roster->job = fields.text();
  roster->token = fields.text();
  *rank0_port = fields.number_in(1, 65535);
  roster->joins = fields.number_in(0, 1) != 0;
  roster->drill = fields.text();
  roster->hosts = fields.texts();
  for (std::size_t i = 0; i < roster->hosts.size(); ++i) {
    roster->ranks.push_back(fields.number_in(0, 1 << 20));
  }
  return fields.complete();
}

std::string pack_cancellation(const MeetingFailed& failure) {
  return Packer().number(failure.code()).text(failure.what()).take();
}

MeetingFailed unpack_cancellation(const std::string& bytes) {
  Unpacker fields(bytes);
  const int code = fields.number_in(0, kAny);
  constexpr std::size_t kLongestReason = 1 << 16;
  return {code, printable(fields.text(), kLongestReason)};
}

int take_ending_signal(const SignalWatch& signals) {
  while (const int number = signals.next()) {
    if (SignalWatch::asks_to_end(number)) {
      return number;
    }
    if (number == SIGTSTP) {
      raise(SIGSTOP);
    }
  }
  return 0;
}

MeetingFailed stopped_by_signal(int number) {
  return {128 + number, concat("stopped by signal ", number, " (", strsignal(number), ")")};
}

}  // namespace trireme::detail
