#pragma once

#include <cstdint>
#include <optional>
#include <string>

// The conversation that lets the launcher of a machine into a job; that of the ranks
// (comm/rendezvous/admission.h), over a network:
//
//   launcher  -> machine 0  Hello      who I am, and a fresh number
//   machine 0 -> launcher   Challenge  a fresh number, and a proof that it knows the secret
//   launcher  -> machine 0  Proof      a proof that this launcher knows the secret
//   machine 0 -> launcher   Verdict    admitted, or why not
//
// A proof is an HMAC-SHA256, keyed with the secret, of the Hello and both numbers, so the secret
// itself never travels and an old conversation cannot be replayed. Where nobody has a secret it is
// empty, and the proofs prove nothing.

namespace trireme::detail {

// What a launcher says about itself.
struct MachineHello {
  int protocol = 0;
  std::string library;  // the version of Trireme
  int machine = 0;
  int machines = 1;
  int ranks = 1;
  int pid = -1;
  std::string host;  // its name, for messages
  bool has_secret = false;
  std::string nonce;

  // "machine 1 (host), pid 4711".
  std::string name() const;
};

struct MachineChallenge {
  std::string number;
  std::string proof;
};

struct MachineVerdict {
  bool admitted = false;
  std::string message;
};

// A number that was never used before.
std::string fresh_number();

// About this process, with a fresh number.
MachineHello make_machine_hello(int machine, int machines, int ranks, bool has_secret);

std::string pack_hello(const MachineHello& hello);
// Nothing when the bytes are none of ours. One of another protocol has only that number.
std::optional<MachineHello> unpack_hello(const std::string& bytes);
bool speaks_our_protocol(const MachineHello& hello);
std::string pack_challenge(const MachineChallenge& challenge);
std::optional<MachineChallenge> unpack_challenge(const std::string& bytes);
std::string pack_verdict(const MachineVerdict& verdict);
std::optional<MachineVerdict> unpack_verdict(const std::string& bytes);

enum class ProofOf : std::uint8_t { kMachine0 = 1, kJoiner = 2 };

// `hello` and machine 0's `number` as they travelled.
std::string make_machine_proof(ProofOf side,
                               const std::string& hello,
                               const std::string& number,
                               const std::string& secret);
bool machine_proof_is_genuine(const std::string& proof, const std::string& expected);

// Why a launcher that knows the secret still cannot be let in; nothing when it can.
std::optional<std::string> objection_to(const MachineHello& hello, const MachineHello& host);

// Why one that failed the proof did.
std::string why_no_proof(const MachineHello& hello, const MachineHello& host);

}  // namespace trireme::detail
