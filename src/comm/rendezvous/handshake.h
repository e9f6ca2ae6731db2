#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rendezvous/secrets.h"

// Note [handshake]: the conversation that lets a rank, or the launcher of a machine, into a job:
//
//   joiner -> host  greeting      which attempt at which job it comes for, and a fresh public key
//   host -> joiner  challenge     a fresh public key, and a proof that the host knows the token
//   joiner -> host  introduction  who the joiner is, sealed, which proves that it knows the token
//   host -> joiner  verdict       admitted, or why not
//
// From the two keys both get a secret of this conversation (X25519); with the token, the greeting
// and the host's key it makes the root (HMAC-SHA256), from which the proofs and the keys of what is
// said later are derived. So the token never travels, nobody on the way can change a word (the
// epoch among them), an old conversation is worth nothing, and who has only listened cannot even
// try tokens. A joiner says who it is only to a host that has proven itself.

namespace trireme::detail {

inline constexpr int kProtocol = 6;

// What the two sides of a meeting must have alike.
struct Pass {
  std::string purpose;  // "rank" or "launcher": they never meet each other
  std::string job;
  std::int64_t epoch = 0;
  std::string token;
};

struct Admission {
  bool admitted = false;
  bool genuine = false;  // said by somebody who knows the token
  std::string message;
};

// What the sides have after it, for each direction.
struct SessionKeys {
  std::string sends;
  std::string receives;
};

class JoiningSide {
 public:
  explicit JoiningSide(const Pass& pass);

  const std::string& greeting() const { return greeting_; }
  // False where the bytes are no challenge.
  bool take_challenge(const std::string& bytes);
  bool host_is_genuine() const { return genuine_; }
  // Says nothing to a host that is not genuine.
  std::string introduce(const std::string& said);
  // Nothing where the bytes are no verdict.
  std::optional<Admission> read_verdict(const std::string& bytes) const;
  SessionKeys keys() const;

 private:
  std::string token_;
  KeyPair pair_ = make_key_pair();
  std::string greeting_;
  std::string root_;
  std::string said_;
  bool genuine_ = false;
};

class HostingSide {
 public:
  explicit HostingSide(const Pass& pass) : pass_(&pass) {}

  // The challenge; nothing where `why` says why the joiner is refused at once.
  std::optional<std::string> take_greeting(const std::string& bytes, std::string* why);
  // What the joiner says of itself; nothing where it has not proven that it knows the token.
  std::optional<std::string> take_introduction(const std::string& bytes);
  // Of the joiner, as the greeting says.
  std::int64_t epoch() const { return epoch_; }
  bool has_token() const { return has_token_; }
  std::string verdict(bool admitted, const std::string& message) const;
  SessionKeys keys() const;

 private:
  const Pass* pass_;
  std::int64_t epoch_ = 0;
  bool has_token_ = false;
  std::string root_;
  std::string said_;
  bool proven_ = false;  // by the joiner
};

}  // namespace trireme::detail
