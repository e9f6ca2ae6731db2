#include "comm/ucx/ucx_rail.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "comm/transport/transport_module.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

// See Note [pieces].
constexpr std::size_t kLeastWindow = 2 * UcxRail::kConfirmedBytes;
constexpr std::size_t kMostWindow = 16 << 20;  // of one tag, over all connections together
// For closing connections.
constexpr Milliseconds kTimeToClose{1000};

// A setting of ours, unless the user has made it in the environment.
void set_default(ucp_config_t* config, const char* name, const std::string& value) {
  if (env_string(concat("UCX_", name).c_str())) {
    return;
  }
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  if (status != UCS_OK) {
    log(LogLevel::kDebug,
        concat("UCX does not accept ", name, "=", value, ": ", ucx_status_text(status)));
  }
}

// `interface`: empty for all that the machine has. InfiniBand and its kind have names of their own.
bool only_tcp_over(const std::string& interface) {
  return interface.empty() ? !has_infiniband()
                           : std::filesystem::exists(concat("/sys/class/net/", interface));
}

}  // namespace

std::string ucx_status_text(ucs_status_t status) {
  return ucs_status_string(status);
}

UcxRail::UcxRail(const std::string& interface, bool only_tcp, int rank, int ranks, OnLoss on_loss)
    : interface_(interface),
      own_rank_(rank),
      is_for_tcp_(only_tcp || only_tcp_over(interface)),
      on_loss_(std::move(on_loss)),
      window_(
          std::max(kLeastWindow, kMostWindow / static_cast<std::size_t>(std::max(1, ranks - 1)))) {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "its settings could not be read");
  if (!interface.empty()) {
    TRIREME_CHECK(ucp_config_modify(config, "NET_DEVICES", interface.c_str()) == UCS_OK,
                  "UCX does not accept interface \"{}\"",
                  {interface});
  }
  if (only_tcp) {
    set_default(config, "TLS", "tcp");
  }
  if (is_for_tcp_) {
    set_default(config, "RNDV_THRESH", std::to_string(kUcxPieceBytes + 1));
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
  check(ucp_worker_create(context_, &worker, &worker_), "no worker could be created");
  check(ucp_worker_get_efd(worker_, &descriptor_), "it has no descriptor to wait for");
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(worker_, &address, &length), "it has no address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
}

UcxRail::~UcxRail() {
  close_endpoints();
  if (worker_ != nullptr) {
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) {
    ucp_cleanup(context_);
  }
}

void UcxRail::check(ucs_status_t status, const std::string& what) const {
  TRIREME_CHECK(status == UCS_OK,
                "UCX on {}: {}: {}; check that the interface exists and is up (ip address), and "
                "UCX's own variables (UCX_TLS, UCX_NET_DEVICES)",
                {interface_.empty() ? "the interfaces it chose" : concat("interface ", interface_),
                 what,
                 ucx_status_text(status)});
}

void UcxRail::connect(const std::vector<std::string>& addresses, bool in_pieces) {
  in_pieces_ = in_pieces;
  lanes_.reserve(addresses.size());
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    lanes_.push_back(std::make_unique<Lane>());
    Lane& lane = *lanes_.back();
    lane.rail = this;
    lane.rank = static_cast<int>(rank);
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.address = reinterpret_cast<const ucp_address_t*>(addresses[rank].data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.err_handler.cb = on_error;
    parameters.err_handler.arg = &lane;
    check(ucp_ep_create(worker_, &parameters, &lane.endpoint),
          concat("rank ", rank, " cannot be reached"));
    if (in_pieces) {
      expect_confirmation(lane);
    }
  }
}

void UcxRail::close_endpoints() {
  closing_ = true;
  for (const auto& lane : lanes_) {
    if (lane->confirmation_request != nullptr) {
      ucp_request_cancel(worker_, lane->confirmation_request);
    }
  }
  std::vector<void*> closing;
  closing.reserve(lanes_.size());
  for (const auto& lane : lanes_) {
    if (void* request = begin_closing(*lane)) {
      closing.push_back(request);
    }
  }
  wait_until_closed(closing);
}

void* UcxRail::begin_closing(Lane& lane) {
  if (lane.endpoint == nullptr) {
    return nullptr;
  }
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(std::exchange(lane.endpoint, nullptr), &parameters);
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

void UcxRail::wait_until_closed(const std::vector<void*>& closing) {
  const Deadline patience(kTimeToClose);
  for (void* request : closing) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS && !patience.passed()) {
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
  }
}

void UcxRail::cut(int rank) {
  if (void* request = begin_closing(lane(rank))) {
    wait_until_closed({request});
  }
}

void* UcxRail::post(const Lane& lane,
                    const void* data,
                    std::size_t bytes,
                    std::uint64_t tag,
                    const ucp_request_param_t& parameters) {
  return lane.endpoint == nullptr ? UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET)
                                  : ucp_tag_send_nbx(lane.endpoint, data, bytes, tag, &parameters);
}

void UcxRail::send(int to,
                   std::uint32_t tag,
                   const std::byte* data,
                   std::size_t bytes,
                   bool exact,
                   UcxParcel* parcel) {
  Lane& lane = this->lane(to);
  if (!exact || !in_pieces_) {
    Transfer* transfer = take_transfer(parcel);
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.cb.send = on_sent;
    parameters.user_data = transfer;
    began(transfer, post(lane, data, bytes, full_tag(own_rank_, tag), parameters));
    return;
  }
  Stream& stream = lane.stream(tag);
  for (std::size_t begin = 0; begin == 0 || begin < bytes; begin += kUcxPieceBytes) {
    const Waiting piece{data + begin, std::min(kUcxPieceBytes, bytes - begin), parcel};
    if (stream.waiting.empty() && has_room(stream, piece.bytes)) {
      start(lane, stream, piece);
    } else {
      ++parcel->pieces;
      stream.waiting.push_back(piece);
      ++waiting_;
    }
  }
}

void UcxRail::receive(int from,
                      std::uint32_t tag,
                      std::byte* data,
                      std::size_t bytes,
                      bool exact,
                      UcxParcel* parcel) {
  const bool in_pieces = exact && in_pieces_;
  const std::size_t most = in_pieces ? kUcxPieceBytes : std::max<std::size_t>(1, bytes);
  Stream* stream = in_pieces ? &lane(from).stream(tag) : nullptr;
  for (std::size_t begin = 0; begin == 0 || begin < bytes; begin += most) {
    Transfer* transfer = take_transfer(parcel);
    transfer->stream = stream;
    transfer->bytes = std::min(most, bytes - begin);
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.cb.recv = on_received;
    parameters.user_data = transfer;
    void* request = ucp_tag_recv_nbx(worker_,
                                     data + begin,
                                     transfer->bytes,
                                     full_tag(from, tag),
                                     ~std::uint64_t{0},
                                     &parameters);
    if (UCS_PTR_IS_PTR(request)) {
      transfer->receive = request;
      parcel->receive = exact ? nullptr : request;
    }
    began(transfer, request);
  }
}

void UcxRail::cancel(UcxParcel* parcel) {
  if (parcel->receive != nullptr) {
    ucp_request_cancel(worker_, parcel->receive);
  }
}

bool UcxRail::cancel_receives() {
  bool all = true;
  for (const auto& transfer : transfers_) {
    if (transfer->receive != nullptr) {
      ucp_request_cancel(worker_, transfer->receive);
      all &= transfer->receive == nullptr;
    }
  }
  return all;
}

bool UcxRail::progress() {
  const bool moved = ucp_worker_progress(worker_) > 0;
  return move_windows() || moved;
}

void* UcxRail::begin_flush(int to) {
  if (lane(to).endpoint == nullptr) {
    return nullptr;
  }
  ucp_request_param_t parameters{};
  void* request = ucp_ep_flush_nbx(lane(to).endpoint, &parameters);
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

UcxRail::Transfer* UcxRail::take_transfer(UcxParcel* parcel) {
  if (spare_transfers_.empty()) {
    transfers_.push_back(std::make_unique<Transfer>());
    spare_transfers_.push_back(transfers_.back().get());
  }
  Transfer* transfer = spare_transfers_.back();
  spare_transfers_.pop_back();
  *transfer = {.rail = this, .parcel = parcel};
  ++parcel->pieces;
  return transfer;
}

void UcxRail::began(Transfer* transfer, void* request) {
  if (!UCS_PTR_IS_PTR(request)) {  // it ended at once, and nobody is called
    ended(transfer, UCS_PTR_STATUS(request));
  }
}

void UcxRail::ended(Transfer* transfer, ucs_status_t status) {
  UcxParcel& parcel = *transfer->parcel;
  --parcel.pieces;
  if (status != UCS_OK) {
    parcel.failed = true;
    // A message that is too long is of a rank that made another call, as announcements will show.
    // The rank is well.
    if (status != UCS_ERR_MESSAGE_TRUNCATED && status != UCS_ERR_CANCELED) {
      on_loss_(parcel.peer, status);
    }
  }
  if (transfer->stream != nullptr && status == UCS_OK) {
    transfer->stream->received += transfer->bytes;
    to_confirm_ |= transfer->stream->received >= kConfirmedBytes;
  }
  spare_transfers_.push_back(transfer);
}

void UcxRail::on_error(void* argument, ucp_ep_h, ucs_status_t status) {
  const auto& lane = *static_cast<Lane*>(argument);
  lane.rail->on_loss_(lane.rank, status);
}

void UcxRail::on_sent(void* request, ucs_status_t status, void* transfer) {
  ucp_request_free(request);
  auto* done = static_cast<Transfer*>(transfer);
  done->rail->ended(done, status);
}

void UcxRail::on_received(void* request,
                          ucs_status_t status,
                          const ucp_tag_recv_info_t*,
                          void* transfer) {
  ucp_request_free(request);
  auto* done = static_cast<Transfer*>(transfer);
  done->receive = nullptr;
  done->parcel->receive = nullptr;
  done->rail->ended(done, status);
}

}  // namespace trireme::detail
