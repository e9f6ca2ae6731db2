#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "comm/rendezvous/unix_link.h"

// The conversation that lets a process into a job (docs/mechanisms.md, "Admission"):
//
//   joiner -> rank 0   Greeting      a fresh number, and which world of which job it comes for
//   rank 0 -> joiner   Challenge     a fresh number, and a proof that rank 0 knows the token
//   joiner -> rank 0   Introduction  a proof that the joiner knows the token, and who it is
//   rank 0 -> joiner   Verdict       admitted, or why not
//
// A proof is an HMAC-SHA256, keyed with the token, of everything said so far, the introduction
// included, so the token itself never travels, nobody on the way can change a word, and an old
// conversation cannot be replayed. Neither side says anything about its program before the other
// has proven itself.

namespace trireme::detail {

constexpr std::uint32_t kProtocol = 5;
using Nonce = std::array<std::uint8_t, 32>;
using ProofBytes = std::array<std::uint8_t, 32>;
using JobDigest = std::array<std::uint8_t, 32>;

// Every one of these has the same layout on both sides, without gaps.
struct Greeting {
  char magic[8];
  std::uint32_t protocol;
  std::uint32_t world;  // which of the job's worlds
  JobDigest job;        // SHA-256 of its name
  Nonce nonce;
};

struct Challenge {
  char magic[8];
  std::uint32_t protocol;
  Nonce nonce;
  ProofBytes proof;
};

// Who a process is.
struct Hello {
  std::uint64_t cpus[16];  // the processors it may run on, a bit each (the first 1024)
  std::int64_t epoch;      // the attempt at the job that it belongs to
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  // What all ranks must have been told alike: how they add up, and who waits for whom.
  std::int32_t sum_group;
  char algorithm[24];
  char library[32];  // the version of Trireme
  char program[96];  // the version of the program
  char path[256];    // of the program; for messages
};

// `T` is a Hello, or something with a Hello in it.
template <class T>
struct Introduction {
  ProofBytes proof;
  T said;
};

struct Verdict {
  std::uint32_t admitted;
  char message[1020];
};

// What a process says about itself.
struct Identity {
  int rank = 0;
  int size = 1;
  std::int64_t epoch = 0;
  std::string token;
  std::string program_version;
  int sum_group = 1;
  std::string algorithm = "auto";
};

Hello make_hello(const Identity& identity);

// The number that names this executable's build: the linker's build ID; empty where it has none.
std::string executable_build_id();

Greeting make_greeting(int world, const std::string& job);
bool speaks_our_protocol(const Greeting& greeting);

Challenge make_challenge(const Greeting& greeting, const std::string& token);
bool challenge_is_genuine(const Challenge& challenge,
                          const Greeting& greeting,
                          const std::string& token);

// The joiner's proof of a conversation that ends with `said`.
ProofBytes make_proof(const Greeting& greeting,
                      const Challenge& challenge,
                      const void* said,
                      std::size_t bytes,
                      const std::string& token);
bool same_proof(const ProofBytes& a, const ProofBytes& b);

template <class T>
Introduction<T> introduce(const Greeting& greeting,
                          const Challenge& challenge,
                          const T& said,
                          const std::string& token) {
  static_assert(std::has_unique_object_representations_v<T>, "gaps would be part of the proof");
  return {make_proof(greeting, challenge, &said, sizeof(said), token), said};
}

template <class T>
bool introduction_is_genuine(const Introduction<T>& introduction,
                             const Greeting& greeting,
                             const Challenge& challenge,
                             const std::string& token) {
  const T& said = introduction.said;
  return same_proof(introduction.proof,
                    make_proof(greeting, challenge, &said, sizeof(said), token));
}

// Why a process that knows the token still cannot be let in; nothing when it can.
std::optional<std::string> objection(const Hello& host, const Hello& hello);

// "rank 1 of 4 (pid 4711, /path/to/app)".
std::string name_of(const Hello& hello);

// A verdict's message, of somebody who need not be rank 0.
std::string refusal_text(const Verdict& verdict);
Verdict refusal(const std::string& message);

}  // namespace trireme::detail
