#include "comm/rendezvous/secrets.h"

#include <array>
#include <cstring>

#include <sodium.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

const unsigned char* raw(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}

unsigned char* raw(void* bytes) {
  return static_cast<unsigned char*>(bytes);
}

// Also chooses the fastest code for this processor.
void begin_sodium() {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
}

std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce_of(Place place) {
  std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce{};
  std::memcpy(nonce.data(), &place.stream, sizeof(place.stream));
  std::memcpy(nonce.data() + sizeof(place.stream), &place.count, sizeof(place.count));
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
  crypto_hash_sha256(raw(digest.data()), raw(text.data()), text.size());
  return digest;
}

std::string hmac_sha256(const std::string& key, const std::string& text) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key.data()), key.size());
  crypto_auth_hmacsha256_update(&state, raw(text.data()), text.size());
  std::string mac(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_final(&state, raw(mac.data()));
  return mac;
}

std::string hex_of(const std::string& bytes) {
  std::string hex(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), raw(bytes.data()), bytes.size());
  hex.pop_back();
  return hex;
}

std::string base64_of(const std::string& bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), raw(bytes.data()), bytes.size(), kVariant);
  text.pop_back();  // its terminating zero
  return text;
}

std::optional<std::string> from_base64(const std::string& text) {
  std::string bytes(text.size(), '\0');
  std::size_t count = 0;
  if (sodium_base642bin(raw(bytes.data()),
                        bytes.size(),
                        text.data(),
                        text.size(),
                        nullptr,
                        &count,
                        nullptr,
                        sodium_base64_VARIANT_ORIGINAL) != 0) {
    return std::nullopt;
  }
  bytes.resize(count);
  return bytes;
}

bool same_secret(const std::string& a, const std::string& b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

KeyPair make_key_pair() {
  begin_sodium();
  KeyPair pair{std::string(kKeyBytes, '\0'), std::string(kKeyBytes, '\0')};
  crypto_kx_keypair(raw(pair.open.data()), raw(pair.secret.data()));
  return pair;
}

std::string shared_secret(const KeyPair& own, const std::string& theirs) {
  std::string secret(kKeyBytes, '\0');
  const bool good =
      theirs.size() == kKeyBytes &&
      crypto_scalarmult(raw(secret.data()), raw(own.secret.data()), raw(theirs.data())) == 0;
  return good ? secret : "";
}

void seal(const std::string& key, const Place& place, std::span<std::byte> box, std::size_t clear) {
  const auto said = box.subspan(kTagBytes, clear);
  const auto text = box.subspan(kTagBytes + clear);
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(raw(text.data()),
                                                     raw(box.data()),
                                                     nullptr,
                                                     raw(text.data()),
                                                     text.size(),
                                                     raw(said.data()),
                                                     said.size(),
                                                     nullptr,
                                                     nonce_of(place).data(),
                                                     raw(key.data()));
}

bool unseal(const std::string& key,
            const Place& place,
            std::span<std::byte> box,
            std::size_t clear) {
  const auto said = box.subspan(kTagBytes, clear);
  const auto text = box.subspan(kTagBytes + clear);
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(raw(text.data()),
                                                            nullptr,
                                                            raw(text.data()),
                                                            text.size(),
                                                            raw(box.data()),
                                                            raw(said.data()),
                                                            said.size(),
                                                            nonce_of(place).data(),
                                                            raw(key.data())) == 0;
}

std::string Seal::close(const std::string& message) {
  std::string box = std::string(kTagBytes, '\0') + message;
  seal(key_, next_, std::as_writable_bytes(std::span(box)), 0);
  ++next_.count;
  return box;
}

bool Seal::open(std::string box, std::string* message) {
  if (box.size() < kTagBytes || !unseal(key_, next_, std::as_writable_bytes(std::span(box)), 0)) {
    return false;
  }
  ++next_.count;
  *message = box.substr(kTagBytes);
  return true;
}

}  // namespace trireme::detail
