#include "comm/net/sealed_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "comm/algo/channel.h"
#include "comm/algo/pieces.h"
#include "comm/rendezvous/packing.h"
#include "comm/rendezvous/secrets.h"
#include "comm/transport/transport_module.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

static_assert(kSealBytes == kTagBytes + sizeof(std::uint64_t));
static_assert(kPieceBytes + kSealBytes <= kUcxPieceBytes, "it would go in two messages");

// Streams that steer: what is wrong there makes a rank write where it should not.
bool is_steering(std::uint32_t tag) {
  const auto stream = static_cast<Channel::Stream>(tag % Channel::kStreams);
  return stream == Channel::Stream::kCall || stream == Channel::Stream::kHeader ||
         stream == Channel::Stream::kControl;
}

// Of a transport and its duplicates, by rank: whether a wrong message came in its name.
using Suspects = std::vector<std::atomic<bool>>;

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

  ~SealedTransport() override {
    for (Message& message : messages_) {
      keep_if_abandoned(message);
    }
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override {
    return inner_->description() + (options_.encrypt      ? ", encrypted"
                                    : options_.checks_all ? ", with checksums"
                                                          : "");
  }
  bool progress() override { return inner_->progress(); }
  void rest(Milliseconds most) override { inner_->rest(most); }
  void wake() override { inner_->wake(); }
  void abandon() override {
    is_abandoned_ = true;
    inner_->abandon();
  }
  bool releases_memory() const override { return inner_->releases_memory(); }
  bool sends_without_moving() const override { return inner_->sends_without_moving(); }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override {
    if (!is_sealed(tag)) {
      return wrapped(inner_->send(to, tag, data, bytes, length));
    }
    Message& message = add(to, {tag, sent_[{to, tag}]++}, bytes);
    const std::uint64_t size = bytes;
    std::memcpy(message.box.get() + kTagBytes, &size, sizeof(size));
    if (bytes > 0) {
      std::memcpy(message.box.get() + kSealBytes, data, bytes);
    }
    seal(keys_to_[index(to)], message.place, message.whole(bytes), clear_bytes(bytes));
    message.inner = inner_->send(to, tag, message.box.get(), kSealBytes + bytes, length);
    return request_of(message);
  }

  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override {
    if (!is_sealed(tag)) {
      return wrapped(inner_->receive(from, tag, data, bytes, length));
    }
    // Messages meet receives in the order in which these are posted.
    Message& message = add(from, {tag, received_[{from, tag}]++}, bytes);
    message.is_received = true;
    message.to = {data, bytes};
    message.inner = inner_->receive(from, tag, message.box.get(), kSealBytes + bytes, length);
    return request_of(message);
  }

  bool finished(Request& request) override {
    auto* message = static_cast<Message*>(request.handle());
    if (message == nullptr) {
      return true;
    }
    // What is opened is written to the memory of an operation, which has let go of it by then.
    if (is_abandoned_ || message->is_wrong || !inner_->finished(message->inner)) {
      return false;
    }
    if (message->is_received && !open(*message)) {
      message->is_wrong = true;
      (*suspects_)[index(message->peer)] = true;
      return false;
    }
    forget(request);
    return true;
  }

  void drop(Request& request) override {
    if (request.pending()) {
      auto& message = *static_cast<Message*>(request.handle());
      inner_->drop(message.inner);
      keep_if_abandoned(message);
      forget(request);
    }
  }

  std::optional<std::string> lost(int rank) override {
    return (*suspects_)[index(rank)] ? std::string(kTampered) : inner_->lost(rank);
  }

  void cut(int rank) override { inner_->cut(rank); }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override {
    SealOptions options = options_;
    options.key =
        hmac_sha256(options_.key, Packer().text("duplicate").number(++duplicates_).take());
    return std::make_unique<SealedTransport>(
        inner_->duplicate(exchange), std::move(options), suspects_);
  }

 private:
  // On its way. One that is not sealed has only the inner request.
  struct Message {
    std::list<Message>::iterator self;
    Request inner;
    int peer = 0;
    Place place{};
    std::unique_ptr<std::byte[]> box{};  // the tag, the length, the message
    bool is_received = false;
    std::span<std::byte> to{};  // where one goes that has come
    bool is_wrong = false;

    std::span<std::byte> whole(std::size_t bytes) const { return {box.get(), kSealBytes + bytes}; }
  };
  using Counts = std::map<std::pair<int, std::uint32_t>, std::uint64_t>;

  bool is_sealed(std::uint32_t tag) const {
    return options_.encrypt || options_.checks_all || is_steering(tag);
  }

  // Authenticated as they are: the length, which the receiver of a message of up to so many bytes
  // does not know, and the message where it is not encrypted.
  std::size_t clear_bytes(std::size_t bytes) const {
    return sizeof(std::uint64_t) + (options_.encrypt ? 0 : bytes);
  }

  Message& add(int peer, const Place& place, std::size_t bytes) {
    Message& message = messages_.emplace_back();
    message.self = std::prev(messages_.end());
    message.peer = peer;
    message.place = place;
    message.box = std::make_unique_for_overwrite<std::byte[]>(kSealBytes + bytes);
    std::fill_n(message.box.get(), kSealBytes, std::byte{});
    return message;
  }
  Request wrapped(Request inner) {
    Message& message = messages_.emplace_back();
    message.self = std::prev(messages_.end());
    message.inner = std::move(inner);
    return request_of(message);
  }
  Request request_of(Message& message) {
    Request request(&message);
    finished(request);
    return request;
  }
  void forget(Request& request) {
    messages_.erase(static_cast<Message*>(request.handle())->self);
    request.clear();
  }

  // Some engines that nobody calls any more may still write to a box, or read it, as long as the
  // process lives.
  void keep_if_abandoned(Message& message) const {
    if (is_abandoned_ && !inner_->releases_memory()) {
      // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): a few bytes, once
      static auto* kept = new std::vector<std::unique_ptr<std::byte[]>>;
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      kept->push_back(std::move(message.box));
    }
  }

  std::string key_of(int from, int to) const {
    return hmac_sha256(options_.key, Packer().number(from).number(to).take());
  }

  // False where it is not the message that was sealed for this place.
  bool open(const Message& message) const {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, message.box.get() + kTagBytes, sizeof(bytes));
    const std::string& key = keys_from_[index(message.peer)];
    if (bytes > message.to.size() ||
        !unseal(key, message.place, message.whole(bytes), clear_bytes(bytes))) {
      return false;
    }
    if (bytes > 0) {
      std::memcpy(message.to.data(), message.box.get() + kSealBytes, bytes);
    }
    return true;
  }

  std::list<Message> messages_;  // outlives the transport, which may still send some as it ends
  const std::shared_ptr<Transport> inner_;
  const SealOptions options_;
  const std::shared_ptr<Suspects> suspects_;
  std::vector<std::string> keys_to_;  // by rank
  std::vector<std::string> keys_from_;
  Counts sent_;
  Counts received_;
  int duplicates_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace

std::shared_ptr<Transport> seal_transport(std::shared_ptr<Transport> transport,
                                          const SealOptions& options) {
  auto suspects = std::make_shared<Suspects>(index(transport->size()));
  return std::make_shared<SealedTransport>(std::move(transport), options, std::move(suspects));
}

}  // namespace trireme::detail
