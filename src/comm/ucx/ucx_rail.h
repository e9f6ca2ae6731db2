#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ucp/api/ucp.h>

namespace trireme::detail {

// A message on its way, in pieces.
struct UcxParcel {
  int peer = -1;
  std::size_t pieces = 0;   // that are not there yet
  bool failed = false;      // it never will be
  void* receive = nullptr;  // the request of one that can be given up
};

std::string ucx_status_text(ucs_status_t status);

// One UCX worker, bound to one interface or to what UCX chooses, and its connections.
//
// Note [pieces]
// UCX 1.13 cuts a long message into fragments; where a connection is reset in the middle of one, it
// aborts the process over TCP (an assertion on the count of completions), and with it the rank that
// was to name the one that is gone. So messages are cut here, into pieces that are one fragment
// each. Over TCP that costs nothing: a rendezvous saves no copy there.
//
// Such pieces go whether or not the receiver is ready for them, and lie in its memory until it is.
// So that this has a bound, the receiver confirms what has met its receives, a MiB at a time, and
// no more than a window is sent beyond that. (UCX's own way, synchronous sends, ends in the same
// assertion.)
//
// Each tag has a window of its own. What nobody receives yet fills it and holds back only what
// comes later with the same tag, which is received later as well: a message that is not waited for
// does not stop the collectives.
class UcxRail {
 public:
  static constexpr std::size_t kConfirmedBytes = 1 << 20;

  // Tells of ranks that cannot be reached any more.
  using OnLoss = std::function<void(int rank, ucs_status_t status)>;

  UcxRail(const std::string& interface, bool only_tcp, int rank, int ranks, OnLoss on_loss);
  UcxRail(const UcxRail&) = delete;
  UcxRail& operator=(const UcxRail&) = delete;
  ~UcxRail();

  const std::string& address() const { return address_; }
  // Only TCP goes over it, so far as this machine can tell.
  bool is_for_tcp() const { return is_for_tcp_; }
  // `in_pieces`: the same everywhere; see Note [pieces].
  void connect(const std::vector<std::string>& addresses, bool in_pieces);

  // `exact`: both sides know the length, so that it can be cut.
  void send(int to,
            std::uint32_t tag,
            const std::byte* data,
            std::size_t bytes,
            bool exact,
            UcxParcel* parcel);
  void receive(int from,
               std::uint32_t tag,
               std::byte* data,
               std::size_t bytes,
               bool exact,
               UcxParcel* parcel);
  // Gives up a receive that is not exact. It has ended when nothing of the parcel is on its way.
  void cancel(UcxParcel* parcel);

  // Gives all receives up: nothing is written to their memory any more. False where UCX does not
  // let go of one, which is in the middle of a message that has more than one fragment.
  bool cancel_receives();

  // Breaks the connection to a rank off.
  void cut(int rank);

  // Moves what can be moved; true if anything did.
  bool progress();
  // False: something has come meanwhile. Else the descriptor tells when something has.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }
  int descriptor() const { return descriptor_; }
  void wake() { ucp_worker_signal(worker_); }
  // Begins to see to it that all that was sent has left; null when it has.
  void* begin_flush(int to);

 private:
  // A piece that waits for its turn.
  struct Waiting {
    const std::byte* data;
    std::size_t bytes;
    UcxParcel* parcel;
  };
  // What has one tag, to and from one rank.
  struct Stream {
    explicit Stream(std::uint32_t name) : tag(name) {}
    const std::uint32_t tag;  // a confirmation is sent from here
    std::deque<Waiting> waiting;
    std::size_t unconfirmed = 0;  // bytes sent
    std::size_t received = 0;     // bytes that this rank has not confirmed yet

    // Ranks that made different calls count differently, until they hear of it.
    void confirmed() { unconfirmed -= std::min(unconfirmed, kConfirmedBytes); }
  };
  // To and from one rank.
  struct Lane {
    UcxRail* rail = nullptr;
    int rank = -1;
    ucp_ep_h endpoint = nullptr;
    std::map<std::uint32_t, Stream> streams;  // by tag; they stay where they are
    std::uint32_t confirmation = 0;           // the next one, the tag of a stream, comes here
    void* confirmation_request = nullptr;

    Stream& stream(std::uint32_t tag) { return streams.try_emplace(tag, tag).first->second; }
  };
  // A piece that UCX has.
  struct Transfer {
    UcxRail* rail = nullptr;
    UcxParcel* parcel = nullptr;
    Stream* stream = nullptr;  // that it is to be confirmed on
    std::size_t bytes = 0;
    void* receive = nullptr;  // the request, of one that is received
  };

  static void on_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* transfer);
  static void on_received(void* request,
                          ucs_status_t status,
                          const ucp_tag_recv_info_t* info,
                          void* transfer);

  static void on_confirmed(void* request,
                           ucs_status_t status,
                           const ucp_tag_recv_info_t* info,
                           void* lane);

  void check(ucs_status_t status, const std::string& what) const;
  Lane& lane(int rank) { return *lanes_[static_cast<std::size_t>(rank)]; }
  // UCX matches by the tag alone: ours says whose message it is, too.
  static std::uint64_t full_tag(int from, std::uint32_t tag) {
    return static_cast<std::uint64_t>(from) << 32 | tag;
  }
  // Sends what has room now, and confirms what has come; true if anything was sent.
  bool move_windows();
  bool has_room(const Stream& stream, std::size_t bytes) const;
  void start(Lane& lane, Stream& stream, const Waiting& piece);
  void start_waiting(Lane& lane, Stream& stream);
  void confirm(Lane& lane, Stream& stream);
  void expect_confirmation(Lane& lane);
  Transfer* take_transfer(UcxParcel* parcel);
  // What became of a piece: UCX's answer to the call that began it, and what it says in the end.
  void began(Transfer* transfer, void* request);
  void ended(Transfer* transfer, ucs_status_t status);
  // As ucp_tag_send_nbx, also where the connection is broken off.
  static void* post(const Lane& lane,
                    const void* data,
                    std::size_t bytes,
                    std::uint64_t tag,
                    const ucp_request_param_t& parameters);
  void close_endpoints();
  // What to wait for until it is closed; null: nothing.
  static void* begin_closing(Lane& lane);
  void wait_until_closed(const std::vector<void*>& closing);

  std::string interface_;
  const int own_rank_;
  bool is_for_tcp_;
  OnLoss on_loss_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
  bool in_pieces_ = false;
  std::size_t window_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by rank
  std::size_t waiting_ = 0;                   // pieces, in all streams
  bool to_confirm_ = false;                   // on some stream
  bool closing_ = false;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Transfer*> spare_transfers_;
};

}  // namespace trireme::detail
