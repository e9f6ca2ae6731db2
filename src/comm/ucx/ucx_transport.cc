// Messages through UCX. A module of its own (net/transport_module.h).

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include <poll.h>
#include <ucp/api/ucp.h>

#include "comm/net/transport_module.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

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
// For the last words of a rank that leaves, and for closing connections.
constexpr Milliseconds kTimeToLeave{1000};

std::string ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return concat(major, ".", minor, ".", release);
}

std::string status_text(ucs_status_t status) {
  return ucs_status_string(status);
}

// A setting of ours, unless the user has made it in the environment.
void set_default(ucp_config_t* config, const char* name, const std::string& value) {
  if (env_string(concat("UCX_", name).c_str())) {
    return;
  }
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  if (status != UCS_OK) {
    log(LogLevel::kDebug,
        concat("UCX does not take ", name, "=", value, ": ", status_text(status)));
  }
}

// Only TCP goes over it. `name`: empty for all that the machine has. InfiniBand and its kind have
// names of their own.
bool is_for_tcp(const std::string& name) {
  return name.empty() ? !std::filesystem::exists("/sys/class/infiniband")
                      : std::filesystem::exists(concat("/sys/class/net/", name));
}

// One UCX worker, bound to one interface or to what UCX chooses.
class Rail {
 public:
  Rail(const std::string& interface, bool only_tcp) : interface_(interface) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "its settings could not be read");
    if (!interface.empty()) {
      TRIREME_CHECK(ucp_config_modify(config, "NET_DEVICES", interface.c_str()) == UCS_OK,
                    "UCX does not take interface \"",
                    interface,
                    "\"");
    }
    if (only_tcp) {
      set_default(config, "TLS", "tcp");
    }
    if (only_tcp || is_for_tcp(interface)) {
      // Over TCP a rendezvous saves no copy: what is sent in pieces of up to this size goes at
      // once.
      set_default(config, "RNDV_THRESH", std::to_string(kEagerPieceBytes + 1));
    }
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    const ucs_status_t status = ucp_init(&parameters, config, &context_);
    ucp_config_release(config);
    check(status, "it could not be started");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context_, &worker, &worker_), "no worker could be made");
    check(ucp_worker_get_efd(worker_, &efd_), "it has no descriptor to wait for");
    ucp_address_t* address = nullptr;
    std::size_t length = 0;
    check(ucp_worker_get_address(worker_, &address, &length), "it has no address");
    address_.assign(reinterpret_cast<const char*>(address), length);
    ucp_worker_release_address(worker_, address);
  }
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;
  ~Rail() {
    close_endpoints();
    if (worker_ != nullptr) {
      ucp_worker_destroy(worker_);
    }
    if (context_ != nullptr) {
      ucp_cleanup(context_);
    }
  }

  const std::string& address() const { return address_; }
  ucp_worker_h worker() const { return worker_; }
  ucp_ep_h endpoint(int rank) const { return endpoints_[static_cast<std::size_t>(rank)]; }
  int efd() const { return efd_; }

  void connect(const std::vector<std::string>& addresses,
               ucp_err_handler_cb_t on_error,
               std::vector<std::pair<void*, int>>& owners) {
    endpoints_.assign(addresses.size(), nullptr);
    for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
      ucp_ep_params_t parameters{};
      parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                              UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
      parameters.address = reinterpret_cast<const ucp_address_t*>(addresses[rank].data());
      parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      parameters.err_handler.cb = on_error;
      parameters.err_handler.arg = &owners[rank];
      check(ucp_ep_create(worker_, &parameters, &endpoints_[rank]),
            concat("rank ", rank, " cannot be reached"));
    }
  }

  void close_endpoints() {
    std::vector<void*> closing;
    for (ucp_ep_h& endpoint : endpoints_) {
      if (endpoint == nullptr) {
        continue;
      }
      ucp_request_param_t parameters{};
      parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
      void* request = ucp_ep_close_nbx(endpoint, &parameters);
      endpoint = nullptr;
      if (UCS_PTR_IS_PTR(request)) {
        closing.push_back(request);
      }
    }
    const Deadline patience(kTimeToLeave);
    for (void* request : closing) {
      while (ucp_request_check_status(request) == UCS_INPROGRESS && !patience.passed()) {
        ucp_worker_progress(worker_);
      }
      ucp_request_free(request);
    }
  }

 private:
  void check(ucs_status_t status, const std::string& what) const {
    TRIREME_CHECK(status == UCS_OK,
                  "UCX on ",
                  interface_.empty() ? "the interfaces it chose" : "interface " + interface_,
                  ": ",
                  what,
                  ": ",
                  status_text(status),
                  "; check that the interface exists and is up (ip address), and UCX's own "
                  "variables (UCX_TLS, UCX_NET_DEVICES)");
  }

  std::string interface_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;
  std::string address_;
  std::vector<ucp_ep_h> endpoints_;  // by rank
};

// A message in as many parts as there are rails.
struct Parcel {
  std::array<void*, kMostRails> requests{};
  std::size_t count = 0;
  int peer = -1;
  bool failed = false;  // never finished then
};

std::string pack(const std::vector<std::unique_ptr<Rail>>& rails) {
  std::string text;
  for (const auto& rail : rails) {
    const auto length = static_cast<std::uint32_t>(rail->address().size());
    text.append(reinterpret_cast<const char*>(&length), sizeof(length));
    text += rail->address();
  }
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= text.size();) {
    std::uint32_t length = 0;
    std::memcpy(&length, text.data() + at, sizeof(length));
    at += sizeof(length);
    parts.push_back(text.substr(at, length));
    at += length;
  }
  return parts;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxOptions& options, const ExchangeBytes& exchange)
      : options_(options), losses_(static_cast<std::size_t>(options.size)) {
    TRIREME_CHECK(options.interfaces.size() <= kMostRails,
                  "at most ",
                  kMostRails,
                  " interfaces can be used at once, found ",
                  options.interfaces.size());
    for (const std::string& interface :
         options.interfaces.empty() ? std::vector<std::string>{""} : options.interfaces) {
      rails_.push_back(std::make_unique<Rail>(interface, options.only_tcp));
    }
    const std::vector<std::string> everyone = exchange(pack(rails_));
    std::vector<std::vector<std::string>> addresses(rails_.size());
    for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
      auto parts = unpack(everyone[rank]);
      TRIREME_CHECK(parts.size() == rails_.size(),
                    "rank ",
                    rank,
                    " uses ",
                    parts.size(),
                    " interfaces and rank ",
                    options.rank,
                    " uses ",
                    rails_.size(),
                    ": give every rank as many (--interfaces)");
      for (std::size_t rail = 0; rail < parts.size(); ++rail) {
        addresses[rail].push_back(std::move(parts[rail]));
      }
    }
    for (int rank = 0; rank < options.size; ++rank) {
      owners_.emplace_back(this, rank);
    }
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      rails_[rail]->connect(addresses[rail], on_error, owners_);
    }
  }

  ~UcxTransport() override {
    if (abandoned_) {
      // Taking a worker down moves data; see Transport::abandon.
      // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): a few bytes, once
      static auto* kept = new std::vector<
          std::pair<std::vector<std::unique_ptr<Rail>>, std::vector<std::unique_ptr<Parcel>>>>;
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      kept->emplace_back(std::move(rails_), std::move(all_));
      return;
    }
    flush();
    rails_.clear();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::string description() const override {
    std::string names;
    for (const std::string& interface : options_.interfaces) {
      names += concat(names.empty() ? "" : ", ", interface);
    }
    return concat("UCX ", ucx_version(), names.empty() ? "" : " over ", names);
  }

  Ticket send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override {
    Parcel* parcel = take_parcel(to);
    for_parts(bytes, length, [&](std::size_t rail, std::size_t begin, std::size_t size) {
      ucp_request_param_t parameters{};
      void* request = ucp_tag_send_nbx(rails_[rail]->endpoint(to),
                                       data + begin,
                                       size,
                                       full_tag(options_.rank, tag),
                                       &parameters);
      add(parcel, request);
    });
    return ticket_of(parcel);
  }

  Ticket receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override {
    Parcel* parcel = take_parcel(from);
    for_parts(bytes, length, [&](std::size_t rail, std::size_t begin, std::size_t size) {
      ucp_request_param_t parameters{};
      void* request = ucp_tag_recv_nbx(rails_[rail]->worker(),
                                       data + begin,
                                       size,
                                       full_tag(from, tag),
                                       ~std::uint64_t{0},
                                       &parameters);
      add(parcel, request);
    });
    return ticket_of(parcel);
  }

  bool finished(Ticket& ticket) override {
    if (!ticket.pending()) {
      return true;
    }
    auto* parcel = static_cast<Parcel*>(ticket.handle());
    for (std::size_t i = 0; i < parcel->count;) {
      void* request = parcel->requests[i];
      const ucs_status_t status = ucp_request_check_status(request);
      if (status == UCS_INPROGRESS) {
        ++i;
        continue;
      }
      ucp_request_free(request);
      if (status != UCS_ERR_MESSAGE_TRUNCATED) {
        note(parcel->peer, status);
      }  // else the ranks made different calls, which their announcements show; the peer is well
      parcel->failed |= status != UCS_OK;
      parcel->requests[i] = parcel->requests[--parcel->count];
    }
    if (parcel->count > 0 || parcel->failed) {
      return false;
    }
    give_back(parcel);
    ticket.clear();
    return true;
  }

  void abandon() override { abandoned_ = true; }

  void drop(Ticket& ticket) override {
    if (!ticket.pending() || abandoned_) {
      ticket.clear();
      return;
    }
    auto* parcel = static_cast<Parcel*>(ticket.handle());
    for (std::size_t i = 0; i < parcel->count; ++i) {
      // Receives that are given up are of unknown length: on the first rail.
      ucp_request_cancel(rails_.front()->worker(), parcel->requests[i]);
      const Deadline patience(kTimeToLeave);
      while (ucp_request_check_status(parcel->requests[i]) == UCS_INPROGRESS &&
             !patience.passed()) {
        progress();
      }
      ucp_request_free(parcel->requests[i]);
    }
    give_back(parcel);
    ticket.clear();
  }

  bool progress() override {
    unsigned moved = 0;
    if (abandoned_) {
      return false;
    }
    for (const auto& rail : rails_) {
      moved += ucp_worker_progress(rail->worker());
    }
    return moved > 0;
  }

  void rest(Milliseconds most) override {
    std::array<pollfd, kMostRails> entries{};
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      if (ucp_worker_arm(rails_[i]->worker()) != UCS_OK) {
        return;  // something has come meanwhile
      }
      entries[i] = {rails_[i]->efd(), POLLIN, 0};
    }
    poll(entries.data(), rails_.size(), static_cast<int>(most.count()));
  }

  void wake() override { ucp_worker_signal(rails_.front()->worker()); }

  std::optional<std::string> lost(int rank) override {
    return losses_[static_cast<std::size_t>(rank)];
  }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override {
    return std::make_unique<UcxTransport>(options_, exchange);
  }

 private:
  static std::uint64_t full_tag(int from, std::uint32_t tag) {
    return static_cast<std::uint64_t>(from) << 32 | tag;
  }

  static void on_error(void* argument, ucp_ep_h, ucs_status_t status) {
    const auto& [transport, rank] = *static_cast<std::pair<void*, int>*>(argument);
    static_cast<UcxTransport*>(transport)->note(rank, status);
  }

  void note(int rank, ucs_status_t status) {
    auto& loss = losses_[static_cast<std::size_t>(rank)];
    if (status != UCS_OK && !loss) {
      loss = status_text(status);
    }
  }

  // Calls use(rail, begin, bytes) for each part of a message; see Note [rails].
  template <class Use>
  void for_parts(std::size_t bytes, Length length, const Use& use) {
    if (rails_.size() == 1 || length == Length::kUpTo || bytes < kLeastCutBytes) {
      use(0, 0, bytes);
      return;
    }
    const std::size_t part =
        (bytes / rails_.size() + kCutAlignment - 1) / kCutAlignment * kCutAlignment;
    std::size_t begin = 0;
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      const std::size_t end = rail + 1 == rails_.size() ? bytes : std::min(bytes, begin + part);
      use(rail, begin, end - begin);
      begin = end;
    }
  }

  void add(Parcel* parcel, void* request) {
    if (UCS_PTR_IS_ERR(request)) {
      note(parcel->peer, UCS_PTR_STATUS(request));
      parcel->failed = true;
    } else if (request != nullptr) {
      parcel->requests[parcel->count++] = request;
    }
  }

  Parcel* take_parcel(int peer) {
    if (spare_.empty()) {
      all_.push_back(std::make_unique<Parcel>());
      spare_.push_back(all_.back().get());
    }
    Parcel* parcel = spare_.back();
    spare_.pop_back();
    *parcel = {};
    parcel->peer = peer;
    return parcel;
  }
  void give_back(Parcel* parcel) { spare_.push_back(parcel); }
  Ticket ticket_of(Parcel* parcel) {
    if (parcel->count == 0 && !parcel->failed) {
      give_back(parcel);
      return {};
    }
    return Ticket(parcel);
  }

  // What has been sent leaves this process before the connections are closed.
  void flush() {
    const Deadline patience(kTimeToLeave);
    for (const auto& rail : rails_) {
      for (int rank = 0; rank < options_.size; ++rank) {
        if (rank == options_.rank || lost(rank) || rail->endpoint(rank) == nullptr) {
          continue;
        }
        ucp_request_param_t parameters{};
        void* request = ucp_ep_flush_nbx(rail->endpoint(rank), &parameters);
        if (!UCS_PTR_IS_PTR(request)) {
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
  bool abandoned_ = false;
  std::vector<std::optional<std::string>> losses_;  // by rank
  std::vector<std::pair<void*, int>> owners_;       // for on_error: this and the rank
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<std::unique_ptr<Parcel>> all_;
  std::vector<Parcel*> spare_;
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
