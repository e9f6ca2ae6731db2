#include "comm/rendezvous/member.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "comm/fixed_text.h"
#include "comm/rendezvous/tcp_channel.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

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

struct PackedMember {
  std::int32_t rank, pid, local_rank, local_size;
  char host[64], kernel[64], network[64];
  std::array<std::uint64_t, 16> cpus;
};

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
  member.host = printable(text_of(said.host), sizeof(said.host) - 1);
  member.kernel = text_of(said.kernel);
  member.network = text_of(said.network);
  std::copy(std::begin(said.hello.cpus), std::end(said.hello.cpus), member.cpus.begin());
  return member;
}

std::string pack_members(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members) {
    PackedMember packed{};
    packed.rank = member.rank;
    packed.pid = member.pid;
    packed.local_rank = member.local_rank;
    packed.local_size = member.local_size;
    packed.cpus = member.cpus;
    copy_text(packed.host, member.host);
    copy_text(packed.kernel, member.kernel);
    copy_text(packed.network, member.network);
    text += TcpChannel::bytes_of(packed);
  }
  return text;
}

std::vector<Member> unpack_members(const std::string& text) {
  std::vector<Member> members;
  for (std::size_t at = 0; at + sizeof(PackedMember) <= text.size(); at += sizeof(PackedMember)) {
    PackedMember packed{};
    TcpChannel::read_into(text.substr(at, sizeof(packed)), &packed);
    Member member;
    member.rank = packed.rank;
    member.pid = packed.pid;
    member.local_rank = packed.local_rank;
    member.local_size = packed.local_size;
    member.host = printable(text_of(packed.host), sizeof(packed.host) - 1);
    member.kernel = text_of(packed.kernel);
    member.network = text_of(packed.network);
    member.cpus = packed.cpus;
    members.push_back(std::move(member));
  }
  return members;
}

std::size_t packed_members_bytes(std::size_t count) {
  return count * sizeof(PackedMember);
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
