#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/admission.h"

namespace trireme::detail {

// A rank of a world over several machines, as the others know it.
struct Member {
  int rank = 0;
  int pid = 0;
  int node = 0;  // machines are numbered by their first rank
  int local_rank = 0;
  int local_size = 1;
  std::string host;     // the machine's name; for messages
  std::string kernel;   // the running kernel, which network namespaces of a host share
  std::string network;  // the network namespace
  std::array<std::uint64_t, 16> cpus{};  // that it may run on, a bit each (Hello::cpus)
};

// Who a rank is, and where.
struct NetHello {
  Hello hello;
  std::int32_t local_rank;
  std::int32_t local_size;
  char host[64];
  char kernel[64];
  char network[64];
};

NetHello make_net_hello(const Identity& identity, int local_rank, int local_size);
Member member_of(const NetHello& said);

// Members as bytes and back; nothing where the bytes are none of ours.
std::string pack_members(const std::vector<Member>& members);
std::optional<std::vector<Member>> unpack_members(const std::string& bytes);

// Numbers the machines by their first ranks. Throws where the ranks of one do not follow each
// other.
void number_machines(std::vector<Member>& members);

}  // namespace trireme::detail
