#include "comm/algo/net_call.h"

#include <algorithm>
#include <cstring>

#include "device/stream.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

struct Header {
  std::uint32_t sequence;
  OpKind kind;
  ReduceOp reduce;
  Dtype dtype;
  std::uint8_t has_counts;
  std::int32_t root;
  std::uint32_t absent_count;
  std::int64_t total;
  std::int64_t input_numel;
  std::int64_t output_numel;
  std::uint32_t is_eager;
  std::uint32_t unused3;
  // See NetCall::whole_facts.
  OpKind whole_kind;
  ReduceOp whole_reduce;
  Dtype whole_dtype;
  std::uint8_t unused;
  std::int32_t whole_root;
  std::int32_t unused2;
  std::int64_t whole_total;
};

const Header& header_of(const std::byte* buffer) {
  return *reinterpret_cast<const Header*>(buffer);
}

// Everyone gets only what it will add up.
bool goes_in_parts(const Operation& operation, Announcing announcing) {
  return operation.kind == OpKind::kReduceScatter && announcing == Announcing::kToAll;
}

}  // namespace

bool fits_announcements(const Operation& operation, int size, Announcing announcing) {
  // A reduction of small inputs is made from all of them: what comes in counts.
  const std::size_t peers = index(std::max(1, size - 1));
  const std::size_t most_terms =
      peers == 1
          ? kEagerPairBytes
          : std::min(kEagerNetBytes, std::max<std::size_t>(4096, 2 * kEagerNetBytes / peers));
  const auto bytes_of = [&](std::int64_t numel) {
    return static_cast<std::size_t>(std::max<std::int64_t>(0, numel)) *
           dtype_bytes(operation.dtype);
  };
  const auto most_part = [&] {
    return operation.counts.empty() ? std::int64_t{0} : *std::ranges::max_element(operation.counts);
  };
  switch (operation.kind) {
    case OpKind::kBarrier:
    case OpKind::kAllocate:
      return true;
    case OpKind::kReduceScatter:
      return bytes_of(goes_in_parts(operation, announcing) ? most_part() : operation.total) <=
             most_terms;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return bytes_of(operation.total) <= most_terms;
    case OpKind::kAllGather:
      return NetCall::is_eager(bytes_of(most_part()));
    case OpKind::kBroadcast:
      return NetCall::is_eager(bytes_of(operation.total));
    default:
      return false;
  }
}

AnnouncementPool::AnnouncementPool(int size)
    : bytes_(sizeof(Header) + index(size) * sizeof(std::int64_t) +
             kMostAnnouncedRanges * sizeof(Range) +
             (size <= 2 ? kEagerPairBytes : kEagerNetBytes)) {}

AnnouncementPool::Buffer AnnouncementPool::take() {
  if (spare_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(bytes_);
  }
  Buffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

NetCall::NetCall(
    Channel& channel, AnnouncementPool& pool, const Call& call, Announcing announcing, int group)
    : channel_(channel),
      pool_(pool),
      operation_(call.operation),
      sequence_(static_cast<std::uint32_t>(call.number)),
      announcing_(announcing),
      group_(operation_.terms.group > 0 ? operation_.terms.group : group),
      announcements_only_(fits_announcements(operation_, channel.size(), announcing)),
      peers_(index(channel.size())),
      sends_(channel) {
  const Operation& operation = operation_;
  const CallFacts whole = operation.whole.value_or(facts_of(operation));
  AnnouncementPool::Buffer buffer = pool_.take();
  const std::size_t input_bytes = operation.input.size_bytes();
  const bool eager = reduces(operation.kind) ? announcements_only_ : is_eager(input_bytes);
  Header header{};
  header.sequence = sequence_;
  header.kind = operation.kind;
  header.reduce = operation.reduce;
  header.dtype = operation.dtype;
  header.root = operation.root;
  header.total = operation.total;
  header.input_numel = operation.input.numel();
  header.output_numel = operation.output.numel();
  header.has_counts = operation.counts.empty() ? 0 : 1;
  header.absent_count = static_cast<std::uint32_t>(operation.terms.absent.size());
  header.is_eager = eager ? 1 : 0;
  header.whole_kind = whole.kind;
  header.whole_reduce = whole.reduce;
  header.whole_dtype = whole.dtype;
  header.whole_root = whole.root;
  header.whole_total = whole.total;
  TRIREME_CHECK(operation.terms.absent.size() <= kMostAnnouncedRanges,
                "{}: the ranks leave out {} ranges together, at most {} can be named in one call: "
                "reduce in smaller parts",
                {op_name(operation.kind), operation.terms.absent.size(), kMostAnnouncedRanges});
  std::byte* at = buffer.get();
  const auto append = [&](const void* data, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(at, data, bytes);
      at += bytes;
    }
  };
  append(&header, sizeof(header));
  append(operation.counts.data(), operation.counts.size() * sizeof(std::int64_t));
  append(operation.terms.absent.data(), operation.terms.absent.size() * sizeof(Range));
  append(operation.input.bytes(), eager && !in_parts() ? input_bytes : 0);
  own_bytes_ = static_cast<std::size_t>(at - buffer.get());
  peers_[index(rank())].heard = std::move(buffer);
  peers_[index(rank())].known = true;
}

bool NetCall::in_parts() const {
  return goes_in_parts(operation_, announcing_);
}

NetCall::~NetCall() {
  // Memory that a message may still write to or read from stays with it, after a failure.
  bool idle = sends_.completed();
  for (const Peer& peer : peers_) {
    idle &= !peer.receiving.pending();
  }
  for (Peer& peer : peers_) {
    for (auto* buffer : {&peer.heard, &peer.said}) {
      if (!idle) {
        static_cast<void>(
            buffer->release());  // a few KiB, once, of a communicator that is finished
      } else if (*buffer) {
        pool_.give_back(std::move(*buffer));
      }
    }
  }
}

void NetCall::announce_to_all() {
  for (int step = 1; step < size(); ++step) {
    const int rank = (this->rank() + step) % size();
    Peer& peer = peers_[index(rank)];
    peer.heard = pool_.take();
    peer.receiving = channel_.receive(
        rank, Channel::Stream::kCall, peer.heard.get(), pool_.bytes(), Transport::Length::kUpTo);
  }
  const bool parts = in_parts() && announcements_only_;
  for (int step = 1; step < size(); ++step) {
    const int rank = (this->rank() + step) % size();
    const std::byte* announcement = mine().data();
    std::size_t bytes = own_bytes_;
    if (parts) {
      AnnouncementPool::Buffer& said = peers_[index(rank)].said;
      said = pool_.take();
      const std::size_t part = static_cast<std::size_t>(count(rank)) * element();
      std::memcpy(said.get(), announcement, bytes);
      if (part > 0) {
        std::memcpy(said.get() + bytes,
                    operation_.input.bytes() + static_cast<std::size_t>(begin(rank)) * element(),
                    part);
      }
      announcement = said.get();
      bytes += part;
    }
    sends_.add(
        rank,
        channel_.send(rank, Channel::Stream::kCall, announcement, bytes, Transport::Length::kUpTo));
  }
}

std::span<const std::byte> NetCall::mine() const {
  return {peers_[index(channel_.rank())].heard.get(), own_bytes_};
}

void NetCall::take(int rank, std::span<const std::byte> announcement) {
  if (has(rank)) {
    return;
  }
  Peer& peer = peers_[index(rank)];
  peer.heard = pool_.take();
  std::memcpy(peer.heard.get(), announcement.data(), std::min(announcement.size(), pool_.bytes()));
  peer.known = true;
}

CallFacts NetCall::facts(int rank) const {
  const std::byte* buffer = peers_[index(rank)].heard.get();
  const Header& header = header_of(buffer);
  return {header.kind,
          header.reduce,
          header.dtype,
          header.root,
          header.total,
          header.input_numel,
          header.output_numel,
          header.has_counts != 0 ? reinterpret_cast<const std::int64_t*>(buffer + sizeof(Header))
                                 : nullptr};
}

CallFacts NetCall::whole_facts(int rank) const {
  const Header& header = header_of(peers_[index(rank)].heard.get());
  return {header.whole_kind,
          header.whole_reduce,
          header.whole_dtype,
          header.whole_root,
          header.whole_total};
}

std::span<const Range> NetCall::absent(int rank) const {
  const std::byte* buffer = peers_[index(rank)].heard.get();
  const Header& header = header_of(buffer);
  const std::size_t counts = header.has_counts != 0 ? index(size()) * sizeof(std::int64_t) : 0;
  return {reinterpret_cast<const Range*>(buffer + sizeof(Header) + counts), header.absent_count};
}

const std::byte* NetCall::eager(int rank) const {
  const std::byte* buffer = peers_[index(rank)].heard.get();
  if (header_of(buffer).is_eager == 0) {
    return nullptr;
  }
  const auto ranges = absent(rank);
  return reinterpret_cast<const std::byte*>(ranges.data() + ranges.size());
}

const std::byte* NetCall::eager_term(int rank, std::int64_t first) const {
  const std::size_t offset = static_cast<std::size_t>(first) * element();
  if (rank == this->rank()) {
    return operation_.input.bytes() + offset;
  }
  return in_parts() ? eager(rank) : eager(rank) + offset;
}

std::int64_t NetCall::begin(int rank) const {
  return sum_before(operation_.counts.data(), rank);
}

void NetCall::reduce(Range range,
                     std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs) const {
  std::vector<device::Term> terms;
  terms.reserve(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto ranges = absent(static_cast<int>(rank));
    terms.push_back({inputs[rank], ranges.data(), ranges.size()});
  }
  const SumTerms& sum = operation_.terms;
  const device::Term old{
      outputs.empty() ? nullptr : outputs.front(), sum.fresh.data(), sum.fresh.size()};
  device::host().reduce({.dtype = operation_.dtype,
                         .output_dtype = operation_.kind == OpKind::kReduceScatter
                                             ? operation_.output.dtype()
                                             : operation_.dtype,
                         .op = operation_.reduce,
                         .divisor = channel_.size(),
                         .group = group_,
                         .range = range,
                         .terms = terms,
                         .accumulator = sum.accumulate ? &old : nullptr,
                         .outputs = outputs});
}

bool AllAnnounced::ready() {
  for (; next_ < call_.size(); ++next_) {
    NetCall::Peer& peer = call_.peers_[index(next_)];
    if (!peer.known) {
      if (!peer.receiving.pending() && peer.heard == nullptr) {
        return false;  // comes by another way
      }
      if (!call_.channel_.transport().finished(peer.receiving)) {
        return false;
      }
      peer.known = true;
    }
    check_same_call(call_.sequence_,
                    call_.size(),
                    call_.rank(),
                    call_.whole_facts(call_.rank()),
                    next_,
                    call_.whole_facts(next_),
                    name_);
    check_same_call(call_.sequence_,
                    call_.size(),
                    call_.rank(),
                    call_.facts(call_.rank()),
                    next_,
                    call_.facts(next_),
                    name_);
  }
  return true;
}

std::vector<int> AllAnnounced::missing() {
  std::vector<int> ranks;
  for (int peer = 0; peer < call_.size(); ++peer) {
    if (!call_.has(peer)) {
      if (!call_.channel_.transport().finished(call_.peers_[index(peer)].receiving)) {
        ranks.push_back(peer);
      }
    }
  }
  return ranks;
}

}  // namespace trireme::detail
