#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

// The handshake of docs/security.md once more, written by hand from its description: what the tests
// measure ours against, on either side of a connection.

namespace trireme::testing {

// --- numbers are 8 bytes, the least significant first; a text is its length and its bytes

inline std::string number(std::int64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
  return bytes;
}

inline std::string text(const std::string& value) {
  return number(static_cast<std::int64_t>(value.size())) + value;
}

class Reading {
 public:
  explicit Reading(std::string bytes) : rest_(std::move(bytes)) {}
  std::int64_t number() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_.at(i))) << (8 * i);
    }
    rest_.erase(0, 8);
    return static_cast<std::int64_t>(value);
  }
  std::string text() {
    const auto length = static_cast<std::size_t>(number());
    std::string value = rest_.substr(0, length);
    EXPECT_EQ(value.size(), length);
    rest_.erase(0, length);
    return value;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string rest_;
};

// --- cryptography, from libsodium

inline std::string hash_by_hand(const std::string& value) {
  std::string digest(32, '\0');
  crypto_hash_sha256(reinterpret_cast<unsigned char*>(digest.data()),
                     reinterpret_cast<const unsigned char*>(value.data()),
                     value.size());
  return digest;
}

inline std::string hmac_by_hand(const std::string& key, const std::string& value) {
  EXPECT_EQ(key.size(), 32U);
  std::string mac(32, '\0');
  crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(mac.data()),
                         reinterpret_cast<const unsigned char*>(value.data()),
                         value.size(),
                         reinterpret_cast<const unsigned char*>(key.data()));
  return mac;
}

// One side's keys of one conversation.
class Keys {
 public:
  Keys() {
    EXPECT_GE(sodium_init(), 0);
    randombytes_buf(secret_.data(), secret_.size());
    crypto_scalarmult_base(bytes(open_), secret_.data());
  }
  const std::string& open() const { return open_; }
  std::string root(const std::string& token,
                   const std::string& theirs,
                   const std::string& greeting,
                   const std::string& host_key) const {
    std::string shared(32, '\0');
    EXPECT_EQ(
        crypto_scalarmult(
            bytes(shared), secret_.data(), reinterpret_cast<const unsigned char*>(theirs.data())),
        0);
    return hmac_by_hand(hash_by_hand(token), text(shared) + text(greeting) + text(host_key));
  }

 private:
  static unsigned char* bytes(std::string& value) {
    return reinterpret_cast<unsigned char*>(value.data());
  }
  std::array<unsigned char, 32> secret_{};
  std::string open_ = std::string(32, '\0');
};

inline std::string derived(const std::string& root,
                           const std::string& what,
                           const std::string& said = "") {
  return hmac_by_hand(root, text(what) + text(said));
}

struct Spoken {
  std::string purpose = "rank";
  std::int64_t protocol = 6;
  std::string job{};
  std::int64_t epoch = 0;
  bool has_token = true;
};

inline std::string greeting_by_hand(const Spoken& spoken, const std::string& open_key) {
  return text("trireme " + spoken.purpose) + number(spoken.protocol) +
         text(hash_by_hand(spoken.job)) + number(spoken.epoch) + number(spoken.has_token ? 1 : 0) +
         text(open_key);
}

// What the member number `rank` of `size` says of itself, on this machine.
struct MemberByHand {
  int rank = 1;
  int size = 2;
  std::string library{};
  std::string program{};
  std::string algorithm = "auto";

  std::string bytes() const {
    std::string all = number(rank) + number(size) + number(getpid()) + number(rank) + number(size) +
                      text("by-hand") + text("kernel") + text("network") + number(1) + number(0) +
                      text(algorithm) + text(library) + text(program) + text("/by/hand");
    for (int word = 0; word < 16; ++word) {
      all += number(word == 0 ? 1 : 0);
    }
    return all;
  }
};

// A message under a key of the session, the `count`th of its direction: a tag of 16 bytes and the
// message, encrypted; and back again, empty where it is not genuine.
inline std::string sealed_by_hand(const std::string& key,
                                  std::uint64_t count,
                                  const std::string& message) {
  unsigned char nonce[12] = {};
  std::memcpy(nonce + 4, &count, sizeof(count));
  std::string sealed(message.size() + 16, '\0');
  crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(sealed.data()),
                                            nullptr,
                                            reinterpret_cast<const unsigned char*>(message.data()),
                                            message.size(),
                                            nullptr,
                                            0,
                                            nullptr,
                                            nonce,
                                            reinterpret_cast<const unsigned char*>(key.data()));
  return sealed.substr(message.size()) + sealed.substr(0, message.size());
}

inline std::string opened_by_hand(const std::string& key,
                                  std::uint64_t count,
                                  const std::string& box) {
  if (box.size() < 16) {
    return "";
  }
  unsigned char nonce[12] = {};
  std::memcpy(nonce + 4, &count, sizeof(count));
  const std::string sealed = box.substr(16) + box.substr(0, 16);
  std::string message(sealed.size() - 16, '\0');
  const int wrong = crypto_aead_chacha20poly1305_ietf_decrypt(
      reinterpret_cast<unsigned char*>(message.data()),
      nullptr,
      nullptr,
      reinterpret_cast<const unsigned char*>(sealed.data()),
      sealed.size(),
      nullptr,
      0,
      nonce,
      reinterpret_cast<const unsigned char*>(key.data()));
  return wrong == 0 ? message : "";
}

// --- over TCP, a message is its length, 4 bytes, and its bytes

inline bool send_frame(int fd, const std::string& message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  std::string all(reinterpret_cast<const char*>(&length), sizeof(length));  // least byte first
  all += message;
  return ::send(fd, all.data(), all.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(all.size());
}

inline bool read_exactly(int fd, char* to, std::size_t bytes) {
  while (bytes > 0) {
    pollfd entry{fd, POLLIN, 0};
    const ssize_t got = poll(&entry, 1, 30'000) == 1 ? recv(fd, to, bytes, 0) : -1;
    if (got <= 0) {
      return false;
    }
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// Empty where the other side has hung up.
inline std::string read_frame(int fd) {
  std::uint32_t length = 0;
  if (!read_exactly(fd, reinterpret_cast<char*>(&length), sizeof(length)) || length > 1 << 26) {
    return "";
  }
  std::string message(length, '\0');
  return read_exactly(fd, message.data(), length) ? message : "";
}

// A joiner by hand, up to and with the verdict.
class JoinerByHand {
 public:
  JoinerByHand(int fd, std::string token) : fd_(fd), token_(std::move(token)) {}

  // Greets; `on_the_way` changes what the host gets. True where the host's proof is that of what
  // was said.
  bool greet(
      const Spoken& spoken,
      const std::function<void(std::string&)>& on_the_way = [](std::string&) {}) {
    greeting_ = greeting_by_hand(spoken, keys_.open());
    std::string heard = greeting_;
    on_the_way(heard);
    EXPECT_TRUE(send_frame(fd_, heard));
    answer_ = read_frame(fd_);
    Reading challenge(answer_);
    if (answer_.empty() || challenge.number() != 1) {
      return false;
    }
    const std::string host_key = challenge.text();
    const std::string proof = challenge.text();
    EXPECT_TRUE(challenge.at_end());
    root_ = keys_.root(token_, host_key, greeting_, host_key);
    return proof == derived(root_, "host");
  }
  const std::string& greeting() const { return greeting_; }
  const std::string& answer() const { return answer_; }  // of the host, as it came

  struct Verdict {
    bool is_one = false;
    bool admitted = false;
    bool genuine = false;
    std::string message{};
  };
  // Says `said` under the key of the joiner; `on_the_way` changes what the host gets.
  Verdict introduce(
      const std::string& said,
      const std::function<void(std::string&)>& on_the_way = [](std::string&) {}) {
    said_ = said;
    std::string sealed = sealed_by_hand(derived(root_, "joiner"), 0, said);
    on_the_way(sealed);
    EXPECT_TRUE(send_frame(fd_, text(sealed)));
    return read_verdict(read_frame(fd_));
  }
  Verdict read_verdict(const std::string& bytes) const {
    Reading fields(bytes);
    if (bytes.empty() || fields.number() != 2) {
      return {};
    }
    Verdict verdict{true};
    verdict.admitted = fields.number() == 1;
    verdict.message = fields.text();
    const std::string proof = fields.text();
    EXPECT_TRUE(fields.at_end());
    verdict.genuine =
        !root_.empty() &&
        proof == derived(root_, verdict.admitted ? "admitted" : "refused", verdict.message);
    return verdict;
  }
  std::string send_key() const { return derived(root_, "joiner sends", said_); }
  std::string receive_key() const { return derived(root_, "host sends", said_); }

 private:
  int fd_;
  std::string token_;
  Keys keys_;
  std::string greeting_;
  std::string answer_;
  std::string root_;
  std::string said_;
};

}  // namespace trireme::testing
