#include "comm/rendezvous/member.h"

#include <algorithm>
#include <bit>
#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "comm/rendezvous/packing.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/core/printable.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

constexpr int kMostRanks = 1 << 20;

std::string host_name() {
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string kernel_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Network namespaces of one host are machines of their own: nothing but the network connects them.
std::string network_id() {
  struct stat status {};
  return stat("/proc/self/ns/net", &status) == 0 ? std::to_string(status.st_ino) : "";
}

std::string path_of_program() {
  char path[256] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "?";
}

}  // namespace

std::string Member::full_name() const {
  return concat("rank ", rank, " of ", size, " (pid ", pid, ", ", path, ")");
}

Member make_member(const Identity& identity) {
  Member member;
  member.rank = identity.rank;
  member.size = identity.size;
  member.pid = getpid();
  member.local_rank = identity.local_rank;
  member.local_size = identity.local_size;
  member.host = host_name();
  member.kernel = kernel_id();
  member.network = network_id();
  for (const int cpu : allowed_cpus()) {
    if (cpu < 1024) {
      member.cpus[static_cast<std::size_t>(cpu) / 64] |= std::uint64_t{1} << (cpu % 64);
    }
  }
  member.sum_group = identity.sum_group;
  member.encrypt = identity.encrypt;
  member.checksums = identity.checksums;
  member.algorithm = identity.algorithm;
  member.library = TRIREME_VERSION;
  member.program = printable(identity.program_version);
  member.path = printable(path_of_program());
  return member;
}

std::string pack_member(const Member& member) {
  Packer fields;
  fields.number(member.rank)
      .number(member.size)
      .number(member.pid)
      .number(member.local_rank)
      .number(member.local_size)
      .text(member.host)
      .text(member.kernel)
      .text(member.network)
      .number(member.sum_group)
      .number((member.encrypt ? 1 : 0) + (member.checksums ? 2 : 0))
      .text(member.algorithm)
      .text(member.library)
      .text(member.program)
      .text(member.path);
  for (const std::uint64_t word : member.cpus) {
    fields.number(static_cast<std::int64_t>(word));
  }
  return fields.take();
}

std::optional<Member> unpack_member(const std::string& bytes) {
  Unpacker fields(bytes);
  Member member;
  member.rank = fields.number_in(-kMostRanks, kMostRanks);
  member.size = fields.number_in(0, kMostRanks);
  member.pid = fields.number_in(0, kAny);
  member.local_rank = fields.number_in(0, kMostRanks);
  member.local_size = fields.number_in(1, kMostRanks);
  member.host = printable(fields.text());
  member.kernel = fields.text();
  member.network = fields.text();
  member.sum_group = fields.number_in(0, kAny);
  const int seals = fields.number_in(0, 3);
  member.encrypt = (seals & 1) != 0;
  member.checksums = (seals & 2) != 0;
  member.algorithm = printable(fields.text());
  member.library = printable(fields.text());
  member.program = printable(fields.text());
  member.path = printable(fields.text());
  for (std::uint64_t& word : member.cpus) {
    word = static_cast<std::uint64_t>(fields.number());
  }
  return fields.complete() ? std::optional(std::move(member)) : std::nullopt;
}

std::optional<std::string> objection(const Member& host, const Member& member) {
  if (member.library != host.library) {
    return concat("it uses Trireme {} and rank 0 uses {}: build both with the same version",
                  {member.library, host.library});
  }
  if (member.program != host.program) {
    return concat(
        "it runs program version \"{}\" ({}) and rank 0 runs \"{}\" ({}): start the same build "
        "everywhere, or set TRIREME_PROGRAM_VERSION to the same value if different builds may work "
        "together",
        {member.program, member.path, host.program, host.path});
  }
  if (member.size != host.size) {
    return concat(
        "it was started for a world of {} ranks and rank 0 for one of {}: give every process the "
        "same world size",
        {member.size, host.size});
  }
  if (member.sum_group != host.sum_group) {
    return concat(
        "it was told to sum groups of {} ranks first and rank 0 groups of {}: give the same "
        "--sum-group (TRIREME_SUM_GROUP) on every machine",
        {member.sum_group, host.sum_group});
  }
  if (member.encrypt != host.encrypt) {
    return concat("it {} and rank 0 {}: give the same --encrypt (TRIREME_ENCRYPT) on every machine",
                  {member.encrypt ? "encrypts" : "does not encrypt",
                   host.encrypt ? "encrypts" : "does not encrypt"});
  }
  if (member.checksums != host.checksums) {
    return concat(
        "it {} and rank 0 {}: give the same --checksums (TRIREME_CHECKSUMS) on every machine",
        {member.checksums ? "checks all messages" : "does not check all messages",
         host.checksums ? "does" : "does not"});
  }
  if (member.algorithm != host.algorithm) {
    return concat(
        "it was told the algorithm \"{}\" and rank 0 \"{}\": give the same --algorithm "
        "(TRIREME_ALGORITHM) on every machine",
        {member.algorithm, host.algorithm});
  }
  if (member.rank <= 0 || member.rank >= host.size) {
    return concat("rank {} is outside the world of {} ranks of rank 0 (pid {})",
                  {member.rank, host.size, host.pid});
  }
  return std::nullopt;
}

int processors_of(const std::vector<Member>& members) {
  int processors = 0;
  for (std::size_t word = 0; word < Member{}.cpus.size(); ++word) {
    std::uint64_t bits = 0;
    for (const Member& member : members) {
      bits |= member.cpus[word];
    }
    processors += std::popcount(bits);
  }
  return processors;
}

void number_machines(std::vector<Member>& members) {
  // A machine is the ranks that its launcher counts together: consecutive, local rank 0 first.
  int node = -1;
  for (Member& member : members) {
    if (member.local_rank == 0) {
      ++node;
    }
    member.node = node;
  }
  int next = 0;
  for (const Member& member : members) {
    const int expected = next;
    next = next + 1 == member.local_size ? 0 : next + 1;
    TRIREME_CHECK(member.local_rank == expected && member.local_rank < member.local_size,
                  "rank {} on {} is local rank {} of {}, expected local rank {}: the ranks of a "
                  "machine must be consecutive (mpirun --map-by slot, srun --distribution=block)",
                  {member.rank, member.host, member.local_rank, member.local_size, expected});
  }
}

}  // namespace trireme::detail
