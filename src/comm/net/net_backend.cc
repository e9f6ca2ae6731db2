#include "comm/net/net_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/algo/message_collectives.h"
#include "comm/net/remote_window.h"
#include "comm/net/staging.h"
#include "comm/order/copy_bytes.h"
#include "comm/order/matching.h"
#include "device/buffer.h"
#include "device/host/segment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// What goes before a message from rank to rank; short ones are in it.
struct MessageHeader {
  Dtype dtype;
  std::int32_t tag;
  std::int64_t numel;
  std::uint64_t group;  // ChannelLease::group
};

constexpr std::size_t kEagerMessageBytes = 16 << 10;
constexpr Milliseconds kMostRest{5};  // not every transport can be waited for

// Memory of this rank alone: the others are elsewhere.
class PrivateBuffer final : public SharedBuffer::Impl {
 public:
  PrivateBuffer(std::size_t bytes, Device device, int rank)
      : memory_(bytes, device), bytes_(bytes), rank_(rank) {}
  std::byte* data(int rank) const override {
    TRIREME_CHECK(rank == rank_,
                  "rank {} cannot read the memory of rank {}: they share none; use a collective",
                  {rank_, rank});
    return const_cast<device::Buffer&>(memory_).data();
  }
  std::size_t size_bytes() const override { return bytes_; }
  int rank() const override { return rank_; }
  const std::byte* read_only() override { return memory_.data(); }
  Device device() const override { return memory_.device(); }

 private:
  device::Buffer memory_;
  std::size_t bytes_;
  int rank_;
};

class NetBackend final : public Backend {
 public:
  NetBackend(NetOptions net, const QueueOptions& options)
      : net_(std::move(net)),
        timeout_(options.timeout),
        transport_(*net_.network->transport()),
        channel_(net_.network->transport(),
                 net_.ranks,
                 net_.channel->channel(),
                 net_.network->machines()),
        collectives_(channel_, net_.algorithm, net_.sum_group, name_) {
    if (!options.part) {
      watch_.emplace(net_.network, net_.ranks, options.flight_folder, options.group);
    }
  }

  int rank() const override { return channel_.rank(); }
  int size() const override { return channel_.size(); }
  int world_rank(int rank) const override { return channel_.world_rank(rank); }
  std::string name(int rank) const override {
    return name_of(net_.network->members()[index(world_rank(rank))]);
  }
  int sum_group() const override { return net_.sum_group; }
  bool one_machine() const override { return false; }
  std::int64_t network_bytes() const override {
    return channel_.bytes_between_machines() + *window_bytes_;
  }

  void check_memory(const Operation& op) const override { check_works_on_devices(op); }
  Steps start(const Call& call) override;
  void completed(const Call& call) override {
    if (watch_) {
      watch_->completed(call);
    }
  }
  bool pump() override { return watch_ ? watch_->pump() : transport_.progress(); }

  std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest& request) override {
    if (request.device.is_host()) {
      device::check_available(request.bytes);
    } else {
      device::open(request.device);
    }
    return std::make_shared<PrivateBuffer>(request.bytes, request.device, rank());
  }
  std::unique_ptr<Window> expose(Communicator& ranks,
                                 std::span<const std::byte> memory,
                                 const FindFailure& find_failure) override {
    return make_remote_window(
        ranks, *net_.network, {timeout_, memory, window_bytes_, find_failure});
  }

  void rest(std::uint32_t /*announced*/, Milliseconds most) override {
    transport_.rest(std::min(most, kMostRest));
  }
  void wake() override { transport_.wake(); }

  bool was_told() const override { return watch_ && watch_->was_told(); }
  CommError told() const override { return watch_->told(); }
  std::optional<CommError> loss(const std::vector<int>& missing) override {
    return watch_ ? watch_->loss(missing) : std::nullopt;
  }
  void say_waits_for(int rank) override {
    if (watch_) {
      watch_->say_waits_for(rank);
    }
  }
  std::vector<int> behind(const std::vector<int>& late) override {
    return watch_ ? watch_->behind(late) : late;
  }
  std::string last_operations() const override { return watch_ ? watch_->last_operations() : ""; }
  void spread(const CommError& failure) override {
    if (watch_) {
      watch_->spread(failure);
    }
  }
  void open() override {
    if (watch_) {
      watch_->open();
    }
  }
  void close(bool clean) override {
    if (watch_) {
      watch_->close(clean);
    }
  }
  void close_in_child() override { transport_.abandon(); }
  bool closes_at_exit() const override { return watch_.has_value(); }

 private:
  Steps send(const Operation& op);
  Steps recv(const Operation& op);
  Steps start_in_turn(const Call& call);

  const NetOptions net_;
  const Milliseconds timeout_;
  Transport& transport_;
  Channel channel_;
  const NameOf name_ = [this](int rank) { return name(rank); };
  MessageCollectives collectives_;
  Staging staging_;
  // Calls that have not told their peers, in whose order they are to be told: those on a device,
  // whose data has to come to the host first, and all after them.
  int untold_ = 0;
  std::optional<NetWatch> watch_;  // not of a part
  const std::shared_ptr<std::atomic<std::int64_t>> window_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

Steps NetBackend::start(const Call& call) {
  const Operation& op = call.operation;
  if (op.kind == OpKind::kSend) {
    return send(op);
  }
  if (op.kind == OpKind::kRecv) {
    return recv(op);
  }
  if (watch_) {
    watch_->issued(call);
  }
  if (Staging::is_for(op)) {
    ++untold_;
    return staging_.run(rank(), call, [this](const Call& staged) {
      --untold_;
      return collectives_.start(staged);
    });
  }
  return untold_ > 0 ? start_in_turn(call) : collectives_.start(call);
}

Steps NetBackend::start_in_turn(const Call& call) {
  // Not before the queue lets it begin, which is when those in front of it have been told.
  ++untold_;
  return [](NetBackend& self, const Call& call) -> Steps {
    --self.untold_;
    Part all(self.collectives_.start(call));
    co_await all;
  }(*this, call);
}

Steps NetBackend::send(const Operation& op) {
  const std::size_t bytes = op.input.size_bytes();
  const MessageHeader header{op.dtype, op.tag, op.input.numel(), net_.channel->group()};
  const bool eager = bytes <= kEagerMessageBytes;
  std::vector<std::byte> first(sizeof(header) + (eager ? bytes : 0));
  std::memcpy(first.data(), &header, sizeof(header));
  copy_bytes(first.data() + sizeof(header), op.input.bytes(), eager ? bytes : 0);
  RequestSet requests(channel_);
  requests.add(
      op.peer,
      channel_.send(
          op.peer, Channel::Stream::kHeader, first.data(), first.size(), Transport::Length::kUpTo));
  if (!eager) {
    requests.add(op.peer,
                 channel_.send(op.peer, Channel::Stream::kMessage, op.input.bytes(), bytes));
  }
  co_await Completed(requests);
}

Steps NetBackend::recv(const Operation& op) {
  const std::size_t bytes = op.output.size_bytes();
  const auto first =
      std::make_unique_for_overwrite<std::byte[]>(sizeof(MessageHeader) + kEagerMessageBytes);
  MessageHeader header{};
  for (;;) {
    RequestSet arriving(channel_);
    arriving.add(op.peer,
                 channel_.receive(op.peer,
                                  Channel::Stream::kHeader,
                                  first.get(),
                                  sizeof(MessageHeader) + kEagerMessageBytes,
                                  Transport::Length::kUpTo));
    co_await Completed(arriving);
    std::memcpy(&header, first.get(), sizeof(header));
    if (header.group == net_.channel->group()) {
      break;
    }
    // Of a group that had this channel before, where nobody received it.
    const std::size_t unread = static_cast<std::size_t>(header.numel) * dtype_bytes(header.dtype);
    if (unread > kEagerMessageBytes) {
      const auto nowhere = std::make_unique_for_overwrite<std::byte[]>(unread);
      RequestSet data(channel_);
      data.add(op.peer,
               channel_.receive(op.peer, Channel::Stream::kMessage, nowhere.get(), unread));
      co_await Completed(data);
    }
  }
  check_message(rank(), op, {header.dtype, header.numel, header.tag}, name_);
  if (bytes <= kEagerMessageBytes) {
    copy_bytes(op.output.bytes(), first.get() + sizeof(header), bytes);
    co_return;
  }
  RequestSet data(channel_);
  data.add(op.peer, channel_.receive(op.peer, Channel::Stream::kMessage, op.output.bytes(), bytes));
  co_await Completed(data);
}

}  // namespace

std::shared_ptr<OperationQueue> make_net_queue(NetOptions net, QueueOptions options) {
  if (!options.part) {
    options.turns = net.network->turns();
  }
  auto backend = std::make_unique<NetBackend>(std::move(net), options);
  return std::make_shared<OperationQueue>(std::move(backend), std::move(options));
}

}  // namespace trireme::detail
