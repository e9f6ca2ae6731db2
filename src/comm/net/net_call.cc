#include "comm/net/net_call.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "trireme/core/error.h"

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
  std::uint64_t eager_bytes;
  std::uint32_t is_eager;
  // See NetCall::outer_facts.
  OpKind outer_kind;
  ReduceOp outer_reduce;
  Dtype outer_dtype;
  std::uint8_t unused;
  std::int32_t outer_root;
  std::int32_t unused2;
  std::int64_t outer_total;
};

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

const Header& header_of(const std::byte* buffer) {
  return *reinterpret_cast<const Header*>(buffer);
}

}  // namespace

AnnouncementPool::AnnouncementPool(int size)
    : bytes_(sizeof(Header) + index(size) * sizeof(std::int64_t) +
             kMostAnnouncedRanges * sizeof(Range) + kEagerNetBytes) {}

AnnouncementPool::Buffer AnnouncementPool::take() {
  if (spare_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(bytes_);
  }
  Buffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

NetCall::NetCall(Wire& wire,
                 AnnouncementPool& pool,
                 const Operation& operation,
                 std::uint32_t sequence,
                 int group,
                 const std::optional<CallFacts>& outer)
    : wire_(wire),
      pool_(pool),
      operation_(operation),
      sequence_(sequence),
      group_(operation.terms.group > 0 ? operation.terms.group : group),
      buffers_(index(wire.size())),
      known_(index(wire.size()), 0),
      sends_(wire),
      receives_(index(wire.size())) {
  AnnouncementPool::Buffer buffer = pool_.take();
  const std::size_t input_bytes = operation.input.size_bytes();
  const bool eager = is_eager(input_bytes);
  Header header{};
  header.sequence = sequence;
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
  header.outer_kind = outer ? outer->kind : operation.kind;
  header.outer_reduce = outer ? outer->reduce : operation.reduce;
  header.outer_dtype = outer ? outer->dtype : operation.dtype;
  header.outer_root = outer ? outer->root : operation.root;
  header.outer_total = outer ? outer->total : operation.total;
  TRIREME_CHECK(operation.terms.absent.size() <= kMostAnnouncedRanges,
                op_name(operation.kind),
                ": the ranks leave out ",
                operation.terms.absent.size(),
                " ranges together, at most ",
                kMostAnnouncedRanges,
                " can be named in one call: reduce in smaller parts");
  header.eager_bytes = eager ? input_bytes : 0;
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
  append(operation.input.bytes(), header.eager_bytes);
  own_bytes_ = static_cast<std::size_t>(at - buffer.get());
  buffers_[index(rank())] = std::move(buffer);
  known_[index(rank())] = 1;
}

NetCall::~NetCall() {
  // Memory that a message may still write to or read from stays with it, after a failure.
  bool idle = sends_.landed();
  for (const Ticket& ticket : receives_) {
    idle &= !ticket.pending();
  }
  for (auto& buffer : buffers_) {
    if (!idle) {
      static_cast<void>(buffer.release());  // a few KiB, once, of a communicator that is finished
    } else if (buffer) {
      pool_.give_back(std::move(buffer));
    }
  }
}

void NetCall::announce_to_all() {
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    buffers_[index(peer)] = pool_.take();
    receives_[index(peer)] = wire_.receive(peer,
                                           Wire::Stream::kCall,
                                           buffers_[index(peer)].get(),
                                           pool_.bytes(),
                                           Transport::Length::kUpTo);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    sends_.add(peer,
               wire_.send(peer,
                          Wire::Stream::kCall,
                          buffers_[index(rank())].get(),
                          own_bytes_,
                          Transport::Length::kUpTo));
  }
}

std::span<const std::byte> NetCall::mine() const {
  return {buffers_[index(wire_.rank())].get(), own_bytes_};
}

void NetCall::take(int rank, std::span<const std::byte> announcement) {
  if (has(rank)) {
    return;
  }
  buffers_[index(rank)] = pool_.take();
  std::memcpy(buffers_[index(rank)].get(),
              announcement.data(),
              std::min(announcement.size(), pool_.bytes()));
  known_[index(rank)] = 1;
}

CallFacts NetCall::facts(int rank) const {
  const std::byte* buffer = buffers_[index(rank)].get();
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

CallFacts NetCall::outer_facts(int rank) const {
  const Header& header = header_of(buffers_[index(rank)].get());
  CallFacts facts;
  facts.kind = header.outer_kind;
  facts.reduce = header.outer_reduce;
  facts.dtype = header.outer_dtype;
  facts.root = header.outer_root;
  facts.total = header.outer_total;
  return facts;
}

std::span<const Range> NetCall::absent(int rank) const {
  const std::byte* buffer = buffers_[index(rank)].get();
  const Header& header = header_of(buffer);
  const std::size_t counts = header.has_counts != 0 ? index(size()) * sizeof(std::int64_t) : 0;
  return {reinterpret_cast<const Range*>(buffer + sizeof(Header) + counts), header.absent_count};
}

const std::byte* NetCall::eager(int rank) const {
  const std::byte* buffer = buffers_[index(rank)].get();
  if (header_of(buffer).is_eager == 0) {
    return nullptr;
  }
  const auto ranges = absent(rank);
  return reinterpret_cast<const std::byte*>(ranges.data() + ranges.size());
}

std::int64_t NetCall::begin(int rank) const {
  return std::accumulate(
      operation_.counts.begin(), operation_.counts.begin() + rank, std::int64_t{0});
}

bool NetCall::is_eager(std::size_t bytes) const {
  // A reduction of small inputs is made by every rank from all of them: what comes in counts.
  const std::size_t peers = index(std::max(1, wire_.size() - 1));
  const std::size_t most = reduces(operation_.kind)
                               ? std::max<std::size_t>(4096, 2 * kEagerNetBytes / peers)
                               : kEagerNetBytes;
  return bytes <= std::min(most, kEagerNetBytes);
}

void NetCall::reduce(Range range,
                     std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs) const {
  std::vector<Term> terms;
  terms.reserve(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto ranges = absent(static_cast<int>(rank));
    terms.push_back({inputs[rank], ranges.data(), ranges.size()});
  }
  const SumTerms& sum = operation_.terms;
  const Term old{outputs.empty() ? nullptr : outputs.front(), sum.fresh.data(), sum.fresh.size()};
  reduce_in_order({.dtype = operation_.dtype,
                   .output_dtype = operation_.kind == OpKind::kReduceScatter
                                       ? operation_.output.dtype()
                                       : operation_.dtype,
                   .op = operation_.reduce,
                   .divisor = wire_.size(),
                   .group = group_,
                   .range = range,
                   .terms = terms,
                   .accumulator = sum.accumulate ? &old : nullptr,
                   .outputs = outputs});
}

bool AllAnnounced::ready() {
  for (; next_ < call_.size(); ++next_) {
    if (!call_.has(next_)) {
      Ticket& ticket = call_.receives_[index(next_)];
      if (!ticket.pending() && call_.buffers_[index(next_)] == nullptr) {
        return false;  // comes by another way
      }
      if (!call_.wire_.transport().finished(ticket)) {
        return false;
      }
      call_.known_[index(next_)] = 1;
    }
    check_same_call(call_.sequence_,
                    call_.size(),
                    call_.rank(),
                    call_.outer_facts(call_.rank()),
                    next_,
                    call_.outer_facts(next_),
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
      Ticket& ticket = call_.receives_[index(peer)];
      if (!call_.wire_.transport().finished(ticket)) {
        ranks.push_back(peer);
      }
    }
  }
  return ranks;
}

}  // namespace trireme::detail
