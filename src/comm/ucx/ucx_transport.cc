// Messages through UCX. A module of its own (net/transport_module.h).

#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "comm/transport/transport_module.h"
#include "comm/ucx/ucx_rail.h"
#include "trireme/core/error.h"

// Note [rails]
// UCX can use several devices for one message by itself, but over TCP it did not (1.13 puts all of
// a rendezvous on one lane), so there is one worker for each interface, bound to it, and long
// messages are cut here. Each rail keeps its own order; both sides cut alike, because the length of
// such a message is known to both.

namespace trireme::detail {
namespace {

constexpr std::size_t kMostRails = 8;
constexpr std::size_t kLeastCutBytes = 128 << 10;
constexpr std::size_t kCutAlignment = 4096;
// For the last words of a rank that leaves.
constexpr Milliseconds kTimeToLeave{1000};

using Rails = std::vector<std::unique_ptr<UcxRail>>;
using Parcels = std::vector<std::unique_ptr<UcxParcel>>;

// Of transports that were left in the middle of something. Nothing moves there any more, but the
// connections stay until this process makes its next ones: to close one with unread data resets it,
// and a peer that sends before it reads would lose the goodbye that is on its way to it.
struct Retired {
  Parcels parcels;
  Rails rails;  // last: they end first, and may still tell parcels
  bool may_end;
};
using RetiredList =
    std::list<Retired>;  // not a vector: assigning one to another ends parcels first

class RetiredTransports {
 public:
  // Never destroyed: at the end of the process UCX may be gone before.
  static RetiredTransports& all() {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): a few bytes, once
    static auto* const all = new RetiredTransports;
    return *all;
  }
  void add(Retired transport) {
    const std::lock_guard lock(mutex_);
    transports_.push_back(std::move(transport));
  }
  void end() {
    const std::lock_guard lock(mutex_);
    std::erase_if(transports_, [](const Retired& each) { return each.may_end; });
  }

 private:
  std::mutex mutex_;
  RetiredList transports_;
};

std::string ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return concat(major, ".", minor, ".", release);
}

// What a rank tells the others of its rails: of each whether it is for TCP, and its address.
struct RailAddress {
  bool is_for_tcp;
  std::string address;
};

std::string pack(const Rails& rails) {
  std::string text;
  for (const auto& rail : rails) {
    const auto length = static_cast<std::uint32_t>(rail->address().size());
    text += rail->is_for_tcp() ? 't' : '-';
    text.append(reinterpret_cast<const char*>(&length), sizeof(length));
    text += rail->address();
  }
  return text;
}

std::vector<RailAddress> unpack(const std::string& text) {
  std::vector<RailAddress> parts;
  for (std::size_t at = 0; at + 1 + sizeof(std::uint32_t) <= text.size();) {
    const bool is_for_tcp = text[at] == 't';
    std::uint32_t length = 0;
    std::memcpy(&length, text.data() + at + 1, sizeof(length));
    at += 1 + sizeof(length);
    parts.push_back({is_for_tcp, text.substr(at, length)});
    at += length;
  }
  return parts;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxOptions& options, const ExchangeBytes& exchange)
      : options_(options), losses_(std::make_shared<Losses>(options.size)) {
    TRIREME_CHECK(options.interfaces.size() <= kMostRails,
                  "at most {} interfaces can be used at once, found {}",
                  {kMostRails, options.interfaces.size()});
    RetiredTransports::all().end();
    for (const std::string& interface :
         options.interfaces.empty() ? std::vector<std::string>{""} : options.interfaces) {
      rails_.push_back(std::make_unique<UcxRail>(interface,
                                                 options.only_tcp,
                                                 options.rank,
                                                 options.size,
                                                 [losses = losses_](int rank, ucs_status_t status) {
                                                   auto& loss =
                                                       (*losses)[static_cast<std::size_t>(rank)];
                                                   if (!loss) {
                                                     loss = ucx_status_text(status);
                                                   }
                                                 }));
    }
    connect(exchange(pack(rails_)));
  }

  ~UcxTransport() override {
    if (abandoned_ || !releases_memory()) {
      // Taking a worker down moves data: never where UCX has memory that is no longer ours. That is
      // so only where a message of several fragments was under way, which over TCP none is.
      RetiredTransports::all().add({std::move(all_), std::move(rails_), releases_memory()});
      return;
    }
    flush();
    rails_.clear();  // takes a second at most for each, whatever became of the others
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::string description() const override {
    const std::string names = listed(options_.interfaces);
    return concat("UCX ", ucx_version(), names.empty() ? "" : " over ", names);
  }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override {
    UcxParcel* parcel = take_parcel(to);
    for_parts(bytes, length, [&](UcxRail& rail, std::size_t begin, std::size_t size) {
      rail.send(to, tag, data + begin, size, length == Length::kExact, parcel);
    });
    return ticket_of(parcel);
  }

  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override {
    UcxParcel* parcel = take_parcel(from);
    if (abandoned_) {
      parcel->failed = true;  // what still comes when connections are closed has nowhere to go
      return Request(parcel);
    }
    for_parts(bytes, length, [&](UcxRail& rail, std::size_t begin, std::size_t size) {
      rail.receive(from, tag, data + begin, size, length == Length::kExact, parcel);
    });
    return ticket_of(parcel);
  }

  bool finished(Request& request) override {
    if (!request.pending()) {
      return true;
    }
    auto* parcel = static_cast<UcxParcel*>(request.handle());
    if (parcel->pieces > 0 || parcel->failed) {
      return false;
    }
    spare_.push_back(parcel);
    request.clear();
    return true;
  }

  void abandon() override {
    if (!std::exchange(abandoned_, true) && getpid() == owner_) {
      for (const auto& rail : rails_) {
        has_let_go_ &= rail->cancel_receives();
      }
    }
  }
  bool releases_memory() const override { return has_let_go_ && getpid() == owner_; }
  bool sends_without_moving() const override { return true; }

  void drop(Request& request) override {
    if (!request.pending() || abandoned_) {
      request.clear();
      return;
    }
    auto* parcel = static_cast<UcxParcel*>(request.handle());
    rails_.front()->cancel(parcel);  // those of unknown length are there
    const Deadline patience(kTimeToLeave);
    while (parcel->pieces > 0 && !patience.passed()) {
      progress();
    }
    if (parcel->pieces == 0) {
      spare_.push_back(parcel);
    }
    request.clear();
  }

  bool progress() override {
    bool moved = false;
    if (!abandoned_) {
      for (const auto& rail : rails_) {
        moved |= rail->progress();
      }
    }
    return moved;
  }

  void rest(Milliseconds most) override {
    std::array<pollfd, kMostRails> entries{};
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      if (!rails_[i]->arm()) {
        return;
      }
      entries[i] = {rails_[i]->descriptor(), POLLIN, 0};
    }
    poll(entries.data(), rails_.size(), static_cast<int>(most.count()));
  }

  void wake() override { rails_.front()->wake(); }

  std::optional<std::string> lost(int rank) override {
    return (*losses_)[static_cast<std::size_t>(rank)];
  }

  void cut(int rank) override {
    for (const auto& rail : rails_) {
      rail->cut(rank);
    }
    note_loss(*losses_, rank, UCS_ERR_CONNECTION_RESET);
  }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override {
    return std::make_unique<UcxTransport>(options_, exchange);
  }

 private:
  using Losses = std::vector<std::optional<std::string>>;  // by rank

  static void note_loss(Losses& losses, int rank, ucs_status_t status) {
    auto& loss = losses[static_cast<std::size_t>(rank)];
    if (!loss) {
      loss = ucx_status_text(status);
    }
  }

  void connect(const std::vector<std::string>& everyone) {
    std::vector<std::vector<std::string>> addresses(rails_.size());
    bool any_for_tcp = false;  // an answer that is the same everywhere
    for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
      auto parts = unpack(everyone[rank]);
      TRIREME_CHECK(parts.size() == rails_.size(),
                    "rank {} uses {} interfaces and rank {} uses {}: give every rank the same "
                    "number (--interfaces)",
                    {rank, parts.size(), options_.rank, rails_.size()});
      for (std::size_t rail = 0; rail < parts.size(); ++rail) {
        any_for_tcp |= parts[rail].is_for_tcp;
        addresses[rail].push_back(std::move(parts[rail].address));
      }
    }
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      rails_[rail]->connect(addresses[rail], any_for_tcp);
    }
  }

  // Calls use(rail, begin, bytes) for each part of a message; see Note [rails].
  template <class Use>
  void for_parts(std::size_t bytes, Length length, const Use& use) {
    if (rails_.size() == 1 || length == Length::kUpTo || bytes < kLeastCutBytes) {
      use(*rails_.front(), 0, bytes);
      return;
    }
    const std::size_t part =
        (bytes / rails_.size() + kCutAlignment - 1) / kCutAlignment * kCutAlignment;
    std::size_t begin = 0;
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      const std::size_t end = rail + 1 == rails_.size() ? bytes : std::min(bytes, begin + part);
      use(*rails_[rail], begin, end - begin);
      begin = end;
    }
  }

  UcxParcel* take_parcel(int peer) {
    if (spare_.empty()) {
      all_.push_back(std::make_unique<UcxParcel>());
      spare_.push_back(all_.back().get());
    }
    UcxParcel* parcel = spare_.back();
    spare_.pop_back();
    *parcel = {};
    parcel->peer = peer;
    return parcel;
  }
  Request ticket_of(UcxParcel* parcel) {
    if (parcel->pieces == 0 && !parcel->failed) {
      spare_.push_back(parcel);
      return {};
    }
    return Request(parcel);
  }

  // What has been sent leaves this process before the connections are closed.
  void flush() {
    const Deadline patience(kTimeToLeave);
    for (const auto& rail : rails_) {
      for (int rank = 0; rank < options_.size; ++rank) {
        if (rank == options_.rank || lost(rank)) {
          continue;
        }
        void* request = rail->begin_flush(rank);
        if (request == nullptr) {
          continue;
        }
        while (ucp_request_check_status(request) == UCS_INPROGRESS && !patience.passed()) {
          progress();
        }
        ucp_request_free(request);
      }
    }
  }

  const UcxOptions options_;
  const pid_t owner_ = getpid();  // a child that it forks has no use for UCX
  bool abandoned_ = false;
  bool has_let_go_ = true;
  const std::shared_ptr<Losses> losses_;
  Parcels all_;
  std::vector<UcxParcel*> spare_;
  Rails rails_;  // as in Retired
};

}  // namespace
}  // namespace trireme::detail

// NOLINTNEXTLINE(readability-identifier-naming): the loader looks for this name
extern "C" __attribute__((visibility("default"))) trireme::detail::Transport*
trireme_make_ucx_transport(const trireme::detail::UcxOptions& options,
                           const trireme::detail::ExchangeBytes& exchange,
                           std::string* failure) {
  try {
    return new trireme::detail::UcxTransport(options, exchange);
  } catch (const trireme::ConfigError& error) {
    *failure = error.what();
    return nullptr;
  }
}
