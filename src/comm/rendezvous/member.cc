#include "comm/rendezvous/member.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "comm/rendezvous/fixed_text.h"
#include "comm/rendezvous/packing.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLongestHost = sizeof(NetHello{}.host) - 1;

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

}  // namespace

NetHello make_net_hello(const Identity& identity, int local_rank, int local_size) {
  NetHello said{};
  said.hello = make_hello(identity);
  said.local_rank = local_rank;
  said.local_size = local_size;
  copy_text(said.host, host_name());
  copy_text(said.kernel, kernel_id());
  copy_text(said.network, network_id());
  return said;
}

Member member_of(const NetHello& said) {
  Member member;
  member.rank = said.hello.rank;
  member.pid = said.hello.pid;
  member.local_rank = said.local_rank;
  member.local_size = said.local_size;
  member.host = printable(text_of(said.host), kLongestHost);
  member.kernel = text_of(said.kernel);
  member.network = text_of(said.network);
  std::copy(std::begin(said.hello.cpus), std::end(said.hello.cpus), member.cpus.begin());
  return member;
}

std::string pack_members(const std::vector<Member>& members) {
  Packer fields;
  fields.number(static_cast<std::int64_t>(members.size()));
  for (const Member& member : members) {
    fields.number(member.rank)
        .number(member.pid)
        .number(member.local_rank)
        .number(member.local_size)
        .text(member.host)
        .text(member.kernel)
        .text(member.network);
    for (const std::uint64_t word : member.cpus) {
      fields.number(static_cast<std::int64_t>(word));
    }
  }
  return fields.take();
}

std::optional<std::vector<Member>> unpack_members(const std::string& bytes) {
  constexpr int kMostRanks = 1 << 20;
  Unpacker fields(bytes);
  std::vector<Member> members;
  for (int left = fields.number_in(0, kMostRanks); left > 0 && !fields.failed(); --left) {
    Member member;
    member.rank = fields.number_in(0, kMostRanks);
    member.pid = fields.number_in(0, kAny);
    member.local_rank = fields.number_in(0, kMostRanks);
    member.local_size = fields.number_in(1, kMostRanks);
    member.host = printable(fields.text(), kLongestHost);
    member.kernel = fields.text();
    member.network = fields.text();
    for (std::uint64_t& word : member.cpus) {
      word = static_cast<std::uint64_t>(fields.number());
    }
    members.push_back(std::move(member));
  }
  return fields.complete() ? std::optional(std::move(members)) : std::nullopt;
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
                  "rank ",
                  member.rank,
                  " on ",
                  member.host,
                  " is local rank ",
                  member.local_rank,
                  " of ",
                  member.local_size,
                  ", expected local rank ",
                  expected,
                  ": the ranks of a machine must be consecutive (mpirun --map-by slot, srun "
                  "--distribution=block)");
  }
}

}  // namespace trireme::detail
