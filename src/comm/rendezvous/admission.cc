#include "comm/rendezvous/admission.h"

#include <algorithm>
#include <cstring>

#include <elf.h>
#include <link.h>
#include <sodium.h>
#include <unistd.h>

#include "comm/rendezvous/fixed_text.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/core/printable.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

constexpr char kMagic[8] = {'T', 'R', 'I', 'R', 'E', 'M', 'E', '1'};

// The parts are hashed one after another; all have fixed sizes, so no two conversations collide.
class Authenticator {
 public:
  explicit Authenticator(const std::string& token) {
    std::array<std::uint8_t, crypto_hash_sha256_BYTES> key{};
    crypto_hash_sha256(
        key.data(), reinterpret_cast<const unsigned char*>(token.data()), token.size());
    crypto_auth_hmacsha256_init(&state_, key.data(), key.size());
  }
  template <class T>
  Authenticator& add(const T& part) {
    return add(&part, sizeof(part));
  }
  Authenticator& add(const void* part, std::size_t bytes) {
    crypto_auth_hmacsha256_update(&state_, static_cast<const unsigned char*>(part), bytes);
    return *this;
  }
  ProofBytes finish() {
    ProofBytes proof{};
    crypto_auth_hmacsha256_final(&state_, proof.data());
    return proof;
  }

 private:
  crypto_auth_hmacsha256_state state_;
};

constexpr std::uint32_t kHostSide = 1;
constexpr std::uint32_t kJoinerSide = 2;

ProofBytes proof_of_host(const Greeting& greeting,
                         const Challenge& challenge,
                         const std::string& token) {
  return Authenticator(token).add(kHostSide).add(greeting).add(challenge.nonce).finish();
}

int find_build_id(dl_phdr_info* info, std::size_t, void* result) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) {
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
    const auto* at = reinterpret_cast<const std::uint8_t*>(info->dlpi_addr + header.p_vaddr);
    const auto* end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const auto* name = at + sizeof(*note);
      const auto* value = name + ((note->n_namesz + 3) & ~3U);
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        auto& text = *static_cast<std::string*>(result);
        for (unsigned k = 0; k < note->n_descsz; ++k) {
          constexpr char kHex[] = "0123456789abcdef";
          text += kHex[value[k] >> 4];
          text += kHex[value[k] & 15];
        }
        return 1;
      }
      at = value + ((note->n_descsz + 3) & ~3U);
    }
  }
  return 1;  // the first object is the executable; the libraries after it do not matter
}

}  // namespace

std::string executable_build_id() {
  std::string text;
  dl_iterate_phdr(find_build_id, &text);
  return text;
}

Hello make_hello(const Identity& identity) {
  Hello hello{};
  hello.rank = identity.rank;
  hello.size = identity.size;
  hello.pid = getpid();
  hello.epoch = identity.epoch;
  copy_text(hello.library, TRIREME_VERSION);
  copy_text(hello.program, identity.program_version);
  hello.sum_group = identity.sum_group;
  copy_text(hello.algorithm, identity.algorithm);
  char path[sizeof(hello.path)] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  copy_text(hello.path, length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "?");
  for (const int cpu : allowed_cpus()) {
    if (cpu < 1024) {
      hello.cpus[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
    }
  }
  return hello;
}

Greeting make_greeting(int world, const std::string& job) {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
  Greeting greeting{};
  std::memcpy(greeting.magic, kMagic, sizeof(kMagic));
  greeting.protocol = kProtocol;
  greeting.world = static_cast<std::uint32_t>(world);
  crypto_hash_sha256(
      greeting.job.data(), reinterpret_cast<const unsigned char*>(job.data()), job.size());
  randombytes_buf(greeting.nonce.data(), greeting.nonce.size());
  return greeting;
}

bool speaks_our_protocol(const Greeting& greeting) {
  return std::memcmp(greeting.magic, kMagic, sizeof(kMagic)) == 0 && greeting.protocol == kProtocol;
}

Challenge make_challenge(const Greeting& greeting, const std::string& token) {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
  Challenge challenge{};
  std::memcpy(challenge.magic, kMagic, sizeof(kMagic));
  challenge.protocol = kProtocol;
  randombytes_buf(challenge.nonce.data(), challenge.nonce.size());
  challenge.proof = proof_of_host(greeting, challenge, token);
  return challenge;
}

bool challenge_is_genuine(const Challenge& challenge,
                          const Greeting& greeting,
                          const std::string& token) {
  return std::memcmp(challenge.magic, kMagic, sizeof(kMagic)) == 0 &&
         challenge.protocol == kProtocol &&
         same_proof(challenge.proof, proof_of_host(greeting, challenge, token));
}

ProofBytes make_proof(const Greeting& greeting,
                      const Challenge& challenge,
                      const void* said,
                      std::size_t bytes,
                      const std::string& token) {
  return Authenticator(token)
      .add(kJoinerSide)
      .add(greeting)
      .add(challenge.nonce)
      .add(said, bytes)
      .finish();
}

bool same_proof(const ProofBytes& a, const ProofBytes& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;  // constant time
}

std::optional<std::string> objection(const Hello& host, const Hello& hello) {
  // First: what is left over may differ in everything else too.
  if (hello.epoch != host.epoch) {
    return concat("it belongs to attempt ",
                  hello.epoch,
                  " at this job and rank 0 to attempt ",
                  host.epoch,
                  " (TRIREME_EPOCH), so ",
                  hello.epoch < host.epoch ? "it" : "rank 0",
                  " is left over from an earlier one: end that process");
  }
  if (text_of(hello.library) != text_of(host.library)) {
    return concat("it uses Trireme ",
                  printable(text_of(hello.library)),
                  " and rank 0 uses ",
                  text_of(host.library),
                  ": build both with the same version");
  }
  if (text_of(hello.program) != text_of(host.program)) {
    return concat("it runs program version \"",
                  printable(text_of(hello.program)),
                  "\" (",
                  printable(text_of(hello.path)),
                  ") and rank 0 runs \"",
                  text_of(host.program),
                  "\" (",
                  text_of(host.path),
                  "): start the same build everywhere, or set TRIREME_PROGRAM_VERSION to the same "
                  "value if different builds may work together");
  }
  if (hello.size != host.size) {
    return concat("it was started for a world of ",
                  hello.size,
                  " ranks and rank 0 for one of ",
                  host.size,
                  ": give every process the same world size");
  }
  if (hello.sum_group != host.sum_group) {
    return concat("it was told to sum groups of ",
                  hello.sum_group,
                  " ranks first and rank 0 groups of ",
                  host.sum_group,
                  ": give the same --sum-group (TRIREME_SUM_GROUP) on every machine");
  }
  if (text_of(hello.algorithm) != text_of(host.algorithm)) {
    return concat("it was told the algorithm \"",
                  printable(text_of(hello.algorithm)),
                  "\" and rank 0 \"",
                  text_of(host.algorithm),
                  "\": give the same --algorithm (TRIREME_ALGORITHM) on every machine");
  }
  if (hello.rank <= 0 || hello.rank >= host.size) {
    return concat("rank ",
                  hello.rank,
                  " is outside the world of ",
                  host.size,
                  " ranks of rank 0 (pid ",
                  host.pid,
                  ")");
  }
  return std::nullopt;
}

std::string name_of(const Hello& hello) {
  return concat("rank ",
                hello.rank,
                " of ",
                hello.size,
                " (pid ",
                hello.pid,
                ", ",
                printable(text_of(hello.path)),
                ")");
}

std::string refusal_text(const Verdict& verdict) {
  return printable(text_of(verdict.message), sizeof(verdict.message));
}

Verdict refusal(const std::string& message) {
  Verdict verdict{};
  copy_text(verdict.message, message);
  return verdict;
}

}  // namespace trireme::detail
