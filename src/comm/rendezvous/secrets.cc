#include "comm/rendezvous/secrets.h"

#include <array>

#include <sodium.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

const unsigned char* raw(const std::string& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* raw(std::string& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

// Also chooses the fastest code for this processor.
void begin_sodium() {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
}

// A number that is never used twice with one key, since messages are counted.
std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce_of(
    std::uint64_t count) {
  std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce{};
  for (std::size_t byte = 0; byte < sizeof(count); ++byte) {
    nonce[byte] = static_cast<unsigned char>(count >> (8 * byte));
  }
  return nonce;
}

}  // namespace

std::string random_bytes(std::size_t count) {
  begin_sodium();
  std::string bytes(count, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string sha256(const std::string& text) {
  std::string digest(crypto_hash_sha256_BYTES, '\0');
  crypto_hash_sha256(raw(digest), raw(text), text.size());
  return digest;
}

std::string hmac_sha256(const std::string& key, const std::string& text) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key), key.size());
  crypto_auth_hmacsha256_update(&state, raw(text), text.size());
  std::string mac(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_final(&state, raw(mac));
  return mac;
}

std::string hex_of(const std::string& bytes) {
  std::string hex(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), raw(bytes), bytes.size());
  hex.pop_back();
  return hex;
}

bool same_secret(const std::string& a, const std::string& b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

KeyPair make_key_pair() {
  begin_sodium();
  KeyPair pair{std::string(kKeyBytes, '\0'), std::string(kKeyBytes, '\0')};
  crypto_kx_keypair(raw(pair.open), raw(pair.secret));
  return pair;
}

std::string shared_secret(const KeyPair& own, const std::string& theirs) {
  std::string secret(kKeyBytes, '\0');
  const bool good = theirs.size() == kKeyBytes &&
                    crypto_scalarmult(raw(secret), raw(own.secret), raw(theirs)) == 0;
  return good ? secret : "";
}

std::string Seal::close(const std::string& message) {
  std::string sealed(message.size() + crypto_aead_chacha20poly1305_ietf_ABYTES, '\0');
  crypto_aead_chacha20poly1305_ietf_encrypt(raw(sealed),
                                            nullptr,
                                            raw(message),
                                            message.size(),
                                            nullptr,
                                            0,
                                            nullptr,
                                            nonce_of(count_++).data(),
                                            raw(key_));
  return sealed;
}

bool Seal::open(const std::string& sealed, std::string* message) {
  if (sealed.size() < crypto_aead_chacha20poly1305_ietf_ABYTES) {
    return false;
  }
  message->resize(sealed.size() - crypto_aead_chacha20poly1305_ietf_ABYTES);
  return crypto_aead_chacha20poly1305_ietf_decrypt(raw(*message),
                                                   nullptr,
                                                   nullptr,
                                                   raw(sealed),
                                                   sealed.size(),
                                                   nullptr,
                                                   0,
                                                   nonce_of(count_++).data(),
                                                   raw(key_)) == 0;
}

}  // namespace trireme::detail
