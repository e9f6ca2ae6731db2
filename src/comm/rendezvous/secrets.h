#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

// What libsodium does for meetings; keys, proofs and random numbers are strings of bytes.

namespace trireme::detail {

inline constexpr std::size_t kKeyBytes = 32;

// Not to be guessed.
std::string random_bytes(std::size_t count);
std::string sha256(const std::string& text);
std::string hmac_sha256(const std::string& key, const std::string& text);
std::string hex_of(const std::string& bytes);
std::string base64_of(const std::string& bytes);
// Nothing where the text is no base64.
std::optional<std::string> from_base64(const std::string& text);
// Takes as long whatever the answer is.
bool same_secret(const std::string& a, const std::string& b);

// The first half of the SHA-256 of a text, in hexadecimal digits.
inline std::string hex_digest(const std::string& text) {
  return hex_of(sha256(text)).substr(0, 32);
}

// What nothing else is called.
inline std::string fresh_name() {
  return hex_of(random_bytes(16));
}

// A pair of keys for one conversation (X25519): from its own private and the other's public one,
// each side gets a secret that nobody who only listens can.
struct KeyPair {
  std::string open;
  std::string secret;
};
KeyPair make_key_pair();
// Empty for a public key that nobody honest has.
std::string shared_secret(const KeyPair& own, const std::string& theirs);

inline constexpr std::size_t kTagBytes = 16;

// Which message it is: never twice under one key.
struct Place {
  std::uint32_t stream = 0;
  std::uint64_t count = 0;
};

// ChaCha20-Poly1305, in place. A box is room for the tag, then `clear` bytes that are authenticated
// as they are, then what is encrypted, too. False where it is not what was sealed for the place.
void seal(const std::string& key, const Place& place, std::span<std::byte> box, std::size_t clear);
bool unseal(const std::string& key,
            const Place& place,
            std::span<std::byte> box,
            std::size_t clear);

// Messages under a key that two have: nobody else can read or change one, send one, leave one out
// or send one again. One for each direction.
class Seal {
 public:
  explicit Seal(std::string key) : key_(std::move(key)) {}

  std::string close(const std::string& message);
  // False where it is not the next message that the other end has sealed.
  bool open(std::string box, std::string* message);

 private:
  std::string key_;
  Place next_;
};

}  // namespace trireme::detail
