#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::detail {

// What a process was told about its place, and what all ranks must have been told alike.
struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;
  std::int64_t epoch = 0;  // the attempt at it
  std::string token;
  std::string program_version;
  int sum_group = 1;
  bool encrypt = false;
  bool checksums = false;
  std::string algorithm = "auto";
};

// Who a rank is, and where.
struct Member {
  int rank = 0;
  int size = 1;
  int pid = 0;
  int node = 0;  // machines are numbered by their first rank
  int local_rank = 0;
  int local_size = 1;
  std::string host;     // the machine's name; for messages
  std::string kernel;   // the running kernel, which network namespaces of a host share
  std::string network;  // the network namespace
  std::array<std::uint64_t, 16> cpus{};  // that it may run on, a bit each (the first 1024)
  // For the host to judge by; others are not told:
  int sum_group = 1;
  bool encrypt = false;
  bool checksums = false;
  std::string algorithm;
  std::string library;  // the version of Trireme
  std::string program;  // the version of the program
  std::string path;     // of the program

  // "rank 1 of 4 (pid 4711, /path/to/app)".
  std::string full_name() const;
};

Member make_member(const Identity& identity);

// A member as bytes and back; nothing where the bytes are none of ours.
std::string pack_member(const Member& member);
std::optional<Member> unpack_member(const std::string& bytes);

// Why a process that knows the token still cannot be let in; nothing when it can.
std::optional<std::string> objection(const Member& host, const Member& member);

// Numbers the machines by their first ranks. Throws where the ranks of one do not follow each
// other.
void number_machines(std::vector<Member>& members);

// That these may run on, all together.
int processors_of(const std::vector<Member>& members);

}  // namespace trireme::detail
