#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/rendezvous/channel.h"

// The conversation that lets a process into a job (docs/architecture.md, "Admission"):
//
//   joiner -> rank 0   Hello      who I am, and a fresh number
//   rank 0 -> joiner   Challenge  a fresh number, and a proof that rank 0 knows the token
//   joiner -> rank 0   Proof      a proof that the joiner knows the token
//   rank 0 -> joiner   Verdict    admitted, or why not
//
// A proof is an HMAC-SHA256, keyed with the token, of everything said so far, so the token itself
// never travels and an old conversation cannot be replayed.

namespace trireme::detail {

constexpr std::uint32_t kProtocol = 2;
using Nonce = std::array<std::uint8_t, 32>;
using ProofBytes = std::array<std::uint8_t, 32>;

struct Hello {
  char magic[8];
  std::uint32_t protocol;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  Nonce nonce;
  char library[32];        // the version of Trireme
  char program[96];        // the version of the program
  char path[256];          // of the program; for messages
  std::uint64_t cpus[16];  // the processors it may run on, a bit each (the first 1024)
  // What all ranks must have been told alike: how they add up, and who waits for whom.
  std::int32_t sum_group;
  char algorithm[20];
};

struct Challenge {
  char magic[8];
  Hello host;  // rank 0's own
  ProofBytes proof;
};

struct Proof {
  ProofBytes proof;
};

struct Verdict {
  std::uint32_t admitted;
  char message[1020];
};

// What a process says about itself.
struct Identity {
  int rank = 0;
  int size = 1;
  std::string token;
  std::string program_version;
  int sum_group = 1;
  std::string algorithm = "auto";
};

Hello make_hello(const Identity& identity);

// The number that names this executable's build: the linker's build ID; empty where it has none.
std::string executable_build_id();

Challenge make_challenge(const Hello& host, const Hello& hello, const std::string& token);
bool challenge_is_genuine(const Challenge& challenge, const Hello& hello, const std::string& token);
Proof make_proof(const Challenge& challenge, const Hello& hello, const std::string& token);
bool proof_is_genuine(const Proof& proof,
                      const Challenge& challenge,
                      const Hello& hello,
                      const std::string& token);

// Why a process that knows the token still cannot be let in; nothing when it can.
std::optional<std::string> objection(const Hello& host, const Hello& hello);

// "rank 1 of 4 (pid 4711, /path/to/app)".
std::string name_of(const Hello& hello);

}  // namespace trireme::detail
