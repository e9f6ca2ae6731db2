// The windows of Note [pieces]: what may be sent, and what the receiver has confirmed.

#include <utility>

#include "comm/ucx/ucx_rail.h"

namespace trireme::detail {
namespace {

// Tags of messages are smaller (Transport::kTags).
constexpr std::uint32_t kConfirmationTag = std::uint32_t{1} << 31;

}  // namespace

bool UcxRail::move_windows() {
  const std::size_t before = waiting_;
  if (waiting_ > 0) {
    for (const auto& lane : lanes_) {
      for (auto& [tag, stream] : lane->streams) {
        start_waiting(*lane, stream);
      }
    }
  }
  if (std::exchange(to_confirm_, false)) {
    for (const auto& lane : lanes_) {
      for (auto& [tag, stream] : lane->streams) {
        confirm(*lane, stream);
      }
    }
  }
  return waiting_ != before;
}

bool UcxRail::has_room(const Stream& stream, std::size_t bytes) const {
  return stream.unconfirmed + bytes <= window_;
}

void UcxRail::start(Lane& lane, Stream& stream, const Waiting& piece) {
  Transfer* transfer = take_transfer(piece.parcel);
  stream.unconfirmed += piece.bytes;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = on_sent;
  parameters.user_data = transfer;
  const std::uint64_t tag = full_tag(own_rank_, stream.tag);
  began(transfer, post(lane, piece.data, piece.bytes, tag, parameters));
}

void UcxRail::start_waiting(Lane& lane, Stream& stream) {
  while (!stream.waiting.empty() && has_room(stream, stream.waiting.front().bytes)) {
    const Waiting piece = stream.waiting.front();
    stream.waiting.pop_front();
    --waiting_;
    --piece.parcel->pieces;  // counts as UCX's from now on
    start(lane, stream, piece);
  }
}

// Tells the sender what has met its receives here.
void UcxRail::confirm(Lane& lane, Stream& stream) {
  for (; stream.received >= kConfirmedBytes; stream.received -= kConfirmedBytes) {
    ucp_request_param_t parameters{};
    const std::uint64_t tag = full_tag(own_rank_, kConfirmationTag);
    void* request = post(lane, &stream.tag, sizeof(stream.tag), tag, parameters);
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);  // UCX finishes it; who is gone needs none
    }
  }
}

void UcxRail::expect_confirmation(Lane& lane) {
  const std::uint64_t tag = full_tag(lane.rank, kConfirmationTag);
  for (;;) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.cb.recv = on_confirmed;
    parameters.user_data = &lane;
    void* request = ucp_tag_recv_nbx(worker_,
                                     &lane.confirmation,
                                     sizeof(lane.confirmation),
                                     tag,
                                     ~std::uint64_t{0},
                                     &parameters);
    if (UCS_PTR_IS_PTR(request)) {
      lane.confirmation_request = request;
      return;
    }
    if (UCS_PTR_STATUS(request) != UCS_OK) {
      return;  // nothing will be confirmed any more: whoever waits finds the rank lost
    }
    lane.stream(lane.confirmation).confirmed();  // it was already there
  }
}

void UcxRail::on_confirmed(void* request,
                           ucs_status_t status,
                           const ucp_tag_recv_info_t*,
                           void* lane) {
  ucp_request_free(request);
  auto& from = *static_cast<Lane*>(lane);
  from.confirmation_request = nullptr;
  if (status == UCS_OK && !from.rail->closing_) {
    from.stream(from.confirmation).confirmed();
    from.rail->expect_confirmation(from);
  }
}

}  // namespace trireme::detail
