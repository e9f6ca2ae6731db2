#include "comm/net/sealed_transport.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <sodium.h>

#include "comm/algo/channel.h"
#include "comm/rendezvous/packing.h"
#include "comm/rendezvous/secrets.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLengthAt = crypto_aead_chacha20poly1305_ietf_ABYTES;
static_assert(kSealBytes == kLengthAt + sizeof(std::uint64_t));

// Streams that steer: what is wrong there makes a rank write where it should not.
bool is_steering(std::uint32_t tag) {
  const auto stream = static_cast<Channel::Stream>(tag % Channel::kStreams);
  return stream == Channel::Stream::kCall || stream == Channel::Stream::kHeader ||
         stream == Channel::Stream::kControl;
}

// Which message it is, for whom: never twice under one key.
struct Place {
  int peer;
  std::uint32_t tag;
  std::uint64_t count;

  std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce() const {
    std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> bytes{};
    std::memcpy(bytes.data(), &tag, sizeof(tag));
    std::memcpy(bytes.data() + sizeof(tag), &count, sizeof(count));
    return bytes;
  }
};

// Of a transport and its duplicates: which ranks a wrong message came from.
class Suspects {
 public:
  explicit Suspects(int size) : found_(index(size)) {}
  void add(int rank) { found_[index(rank)] = true; }
  bool contains(int rank) const { return found_[index(rank)]; }

 private:
  std::vector<std::atomic<bool>> found_;
};

class SealedTransport final : public Transport {
 public:
  SealedTransport(std::shared_ptr<Transport> inner,
                  SealOptions options,
                  std::shared_ptr<Suspects> suspects)
      : inner_(std::move(inner)), options_(std::move(options)), suspects_(std::move(suspects)) {
    for (int peer = 0; peer < inner_->size(); ++peer) {
      keys_to_.push_back(key_of(inner_->rank(), peer));
      keys_from_.push_back(key_of(peer, inner_->rank()));
    }
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override {
    return inner_->description() + (options_.encrypt ? ", encrypted" : "");
  }
  bool progress() override { return inner_->progress(); }
  void rest(Milliseconds most) override { inner_->rest(most); }
  void wake() override { inner_->wake(); }
  void abandon() override { inner_->abandon(); }
  bool sends_without_moving() const override { return inner_->sends_without_moving(); }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override {
    if (!is_sealed(tag)) {
      return wrapped(inner_->send(to, tag, data, bytes, length));
    }
    auto message = std::make_unique<Sealed>();
    message->buffer = std::make_unique_for_overwrite<std::byte[]>(kSealBytes + bytes);
    seal({to, tag, sent_[{to, tag}]++}, data, bytes, message->buffer.get());
    message->inner = inner_->send(to, tag, message->buffer.get(), kSealBytes + bytes, length);
    return message->inner.pending() ? Request(message.release()) : Request();
  }

  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override {
    if (!is_sealed(tag)) {
      return wrapped(inner_->receive(from, tag, data, bytes, length));
    }
    auto message = std::make_unique<Sealed>();
    message->buffer = std::make_unique_for_overwrite<std::byte[]>(kSealBytes + bytes);
    message->is_received = true;
    message->to = data;
    message->room = bytes;
    // Messages meet receives in the order in which these are posted.
    message->place = {from, tag, received_[{from, tag}]++};
    message->inner = inner_->receive(from, tag, message->buffer.get(), kSealBytes + bytes, length);
    Request request(message.release());
    finished(request);
    return request;
  }

  bool finished(Request& request) override {
    auto* message = static_cast<Sealed*>(request.handle());
    if (message == nullptr) {
      return true;
    }
    if (message->is_wrong || !inner_->finished(message->inner)) {
      return false;
    }
    if (message->is_received && !open(*message)) {
      message->is_wrong = true;
      suspects_->add(message->place.peer);
      return false;
    }
    delete message;
    request.clear();
    return true;
  }

  void drop(Request& request) override {
    if (auto* message = static_cast<Sealed*>(request.handle())) {
      inner_->drop(message->inner);
      if (message->inner.pending()) {
        static_cast<void>(message->buffer.release());  // it may still be written to
      }
      delete message;
      request.clear();
    }
  }

  std::optional<std::string> lost(int rank) override {
    return suspects_->contains(rank) ? std::string(kTampered) : inner_->lost(rank);
  }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override {
    SealOptions options = options_;
    options.key =
        hmac_sha256(options_.key, Packer().text("duplicate").number(++duplicates_).take());
    return std::make_unique<SealedTransport>(
        inner_->duplicate(exchange), std::move(options), suspects_);
  }

 private:
  // A request of this transport; of a message that is not sealed only with the inner one.
  struct Sealed {
    Request inner;
    std::unique_ptr<std::byte[]> buffer;
    bool is_received = false;
    std::byte* to = nullptr;  // where the message goes that has come
    std::size_t room = 0;
    Place place{};
    bool is_wrong = false;
  };
  using Counts = std::map<std::pair<int, std::uint32_t>, std::uint64_t>;

  bool is_sealed(std::uint32_t tag) const { return options_.encrypt || is_steering(tag); }

  static Request wrapped(Request inner) {
    if (!inner.pending()) {
      return {};
    }
    auto message = std::make_unique<Sealed>();
    message->inner = std::move(inner);
    return Request(message.release());
  }

  std::string key_of(int from, int to) const {
    return hmac_sha256(options_.key, Packer().number(from).number(to).take());
  }

  static unsigned char* raw(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }
  static const unsigned char* raw(const std::string& key) {
    return reinterpret_cast<const unsigned char*>(key.data());
  }

  // The tag; the length, which the receiver of a message of up to so many bytes does not know; the
  // message. What is not encrypted is authenticated as it is.
  void seal(const Place& place, const std::byte* data, std::size_t bytes, std::byte* to) const {
    const std::uint64_t length = bytes;
    std::memcpy(to + kLengthAt, &length, sizeof(length));
    if (bytes > 0 && !options_.encrypt) {
      std::memcpy(to + kSealBytes, data, bytes);
    }
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        raw(to + kSealBytes),
        raw(to),
        nullptr,
        reinterpret_cast<const unsigned char*>(data),
        options_.encrypt ? bytes : 0,
        raw(to + kLengthAt),
        sizeof(length) + (options_.encrypt ? 0 : bytes),
        nullptr,
        place.nonce().data(),
        raw(keys_to_[index(place.peer)]));
  }

  // False where it is not the message that was sealed for this place.
  bool open(const Sealed& message) const {
    std::uint64_t length = 0;
    std::byte* from = message.buffer.get();
    std::memcpy(&length, from + kLengthAt, sizeof(length));
    if (length > message.room || crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                                     raw(message.to),
                                     nullptr,
                                     raw(from + kSealBytes),
                                     options_.encrypt ? length : 0,
                                     raw(from),
                                     raw(from + kLengthAt),
                                     sizeof(length) + (options_.encrypt ? 0 : length),
                                     message.place.nonce().data(),
                                     raw(keys_from_[index(message.place.peer)])) != 0) {
      return false;
    }
    if (length > 0 && !options_.encrypt) {
      std::memcpy(message.to, from + kSealBytes, length);
    }
    return true;
  }

  const std::shared_ptr<Transport> inner_;
  const SealOptions options_;
  const std::shared_ptr<Suspects> suspects_;
  std::vector<std::string> keys_to_;  // by rank
  std::vector<std::string> keys_from_;
  Counts sent_;
  Counts received_;
  int duplicates_ = 0;
};

}  // namespace

std::shared_ptr<Transport> seal_transport(std::shared_ptr<Transport> transport,
                                          const SealOptions& options) {
  auto suspects = std::make_shared<Suspects>(transport->size());
  return std::make_shared<SealedTransport>(std::move(transport), options, std::move(suspects));
}

}  // namespace trireme::detail
