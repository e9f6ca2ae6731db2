#include "launch/fleet_admission.h"

#include <array>

#include <sodium.h>
#include <unistd.h>

#include "comm/rendezvous/packing.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

constexpr char kMagic[] = "trireme launcher";
constexpr int kFleetProtocol = 1;
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kLongestText = 256;
constexpr std::size_t kLongestMessageShown = 2048;

const unsigned char* bytes_of(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string own_host_name() {
  char name[kLongestText] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

std::string MachineHello::name() const {
  return concat("machine ", machine, " (", host, "), pid ", pid);
}

std::string fresh_number() {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
  std::string number(kNonceBytes, '\0');
  randombytes_buf(number.data(), number.size());
  return number;
}

MachineHello make_machine_hello(int machine, int machines, int ranks, bool has_secret) {
  return {kFleetProtocol,
          TRIREME_VERSION,
          machine,
          machines,
          ranks,
          getpid(),
          own_host_name(),
          has_secret,
          fresh_number()};
}

std::string pack_hello(const MachineHello& hello) {
  return Packer()
      .text(kMagic)
      .number(hello.protocol)
      .text(hello.library)
      .number(hello.machine)
      .number(hello.machines)
      .number(hello.ranks)
      .number(hello.pid)
      .text(hello.host)
      .number(hello.has_secret ? 1 : 0)
      .text(hello.nonce)
      .take();
}

std::optional<MachineHello> unpack_hello(const std::string& bytes) {
  Unpacker fields(bytes);
  if (fields.text() != kMagic) {
    return std::nullopt;
  }
  MachineHello hello;
  hello.protocol = fields.number_in(0, kAny);
  if (!speaks_our_protocol(hello)) {
    return hello;
  }
  hello.library = printable(fields.text(), kLongestText);
  hello.machine = fields.number_in(-kAny, kAny);
  hello.machines = fields.number_in(-kAny, kAny);
  hello.ranks = fields.number_in(1, 1 << 20);
  hello.pid = fields.number_in(0, kAny);
  hello.host = printable(fields.text(), kLongestText);
  hello.has_secret = fields.number_in(0, 1) != 0;
  hello.nonce = fields.text();
  if (!fields.complete() || hello.nonce.size() != kNonceBytes) {
    return std::nullopt;
  }
  return hello;
}

bool speaks_our_protocol(const MachineHello& hello) {
  return hello.protocol == kFleetProtocol;
}

std::string pack_challenge(const MachineChallenge& challenge) {
  return Packer().text(challenge.number).text(challenge.proof).take();
}

std::optional<MachineChallenge> unpack_challenge(const std::string& bytes) {
  Unpacker fields(bytes);
  MachineChallenge challenge{fields.text(), fields.text()};
  return fields.complete() ? std::optional(challenge) : std::nullopt;
}

std::string pack_verdict(const MachineVerdict& verdict) {
  return Packer().number(verdict.admitted ? 1 : 0).text(verdict.message).take();
}

std::optional<MachineVerdict> unpack_verdict(const std::string& bytes) {
  Unpacker fields(bytes);
  const bool admitted = fields.number_in(0, 1) != 0;
  MachineVerdict verdict{admitted, printable(fields.text(), kLongestMessageShown)};
  return fields.complete() ? std::optional(verdict) : std::nullopt;
}

std::string make_machine_proof(ProofOf side,
                               const std::string& hello,
                               const std::string& number,
                               const std::string& secret) {
  const std::string said = Packer().number(static_cast<int>(side)).text(hello).text(number).take();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(said), said.size());
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> proof{};
  crypto_auth_hmacsha256_final(&state, proof.data());
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}

bool machine_proof_is_genuine(const std::string& proof, const std::string& expected) {
  return proof.size() == expected.size() &&
         sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;  // constant time
}

std::optional<std::string> objection_to(const MachineHello& hello, const MachineHello& host) {
  if (hello.library != host.library) {
    return concat("it uses Trireme ",
                  hello.library,
                  " and machine 0 uses ",
                  host.library,
                  ": install the same version on every machine");
  }
  if (hello.machines != host.machines) {
    return concat("it was started with --nnodes ",
                  hello.machines,
                  " and machine 0 with --nnodes ",
                  host.machines,
                  ": give the same on every machine");
  }
  if (hello.machine < 1 || hello.machine >= host.machines) {
    return concat("--node-rank ",
                  hello.machine,
                  " is outside the job: machine 0 waits for 1 to ",
                  host.machines - 1);
  }
  return std::nullopt;
}

std::string why_no_proof(const MachineHello& hello, const MachineHello& host) {
  if (hello.has_secret == host.has_secret) {
    return "its token is not that of machine 0: give the same TRIREME_TOKEN or --token-file on "
           "every machine";
  }
  return concat(hello.has_secret ? "it has a token and machine 0 has none"
                                 : "it has no token and machine 0 has one",
                ": give the same TRIREME_TOKEN or --token-file on every machine");
}

}  // namespace trireme::detail
