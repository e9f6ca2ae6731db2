#include "trireme/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "comm/api/argument_checks.h"
#include "comm/order/operation.h"
#include "comm/queue/group_maker.h"
#include "comm/queue/operation_queue.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::check_can_reduce;
using detail::check_numel;
using detail::check_same_dtype;
using detail::check_terms;
using detail::device_of;
using detail::index;
using detail::op_name;
using detail::OpKind;

}  // namespace

Communicator::Communicator(Parts parts)
    : parts_(std::move(parts)),
      rank_(parts_.queue->backend().rank()),
      size_(parts_.queue->backend().size()) {
  parts_.queue->open();
}

Communicator::~Communicator() {
  parts_.queue->close();
}

Work Communicator::issue(detail::Operation operation) {
  if (operation.kind != OpKind::kAllocate) {
    operation.device = device_of(operation.kind, operation.input, operation.output);
  }
  if (!operation.device.is_host()) {
    parts_.queue->backend().check_memory(operation);
  }
  return parts_.queue->issue(std::move(operation));
}

bool Communicator::one_machine() const {
  return parts_.queue->backend().one_machine();
}

int Communicator::sum_group() const {
  return parts_.queue->backend().sum_group();
}

CommUse Communicator::use() const {
  return parts_.queue->use();
}

void Communicator::abort(const std::string& reason) {
  parts_.queue->end({CommError::Reason::kAborted, rank(), reason});
}

void Communicator::stop(const std::string& reason) {
  parts_.queue->end({CommError::Reason::kStopped, rank(), reason});
}

CommError Communicator::fail(const CommError& failure) {
  const bool died = failure.reason() == CommError::Reason::kPeerDied && failure.peer() >= 0;
  return parts_.queue->end(died ? detail::lost_rank(failure.reason(),
                                                    failure.peer(),
                                                    parts_.queue->backend().name(failure.peer()))
                                : failure);
}

std::unique_ptr<Window> Communicator::expose(const std::byte* data, std::size_t bytes) {
  // News of a loss is there at once, but for goodbyes that may be on their way.
  static constexpr Milliseconds kTimeToFindFailures{1000};
  return parts_.queue->backend().expose(*this, {data, bytes}, [queue = parts_.queue] {
    return queue->find_failure(kTimeToFindFailures);
  });
}

SharedBuffer Communicator::allocate(std::size_t bytes, Device device) {
  return take_memory({.bytes = bytes, .run = {}, .device = device});
}

SharedBuffer Communicator::allocate_run(const Counts& bytes, Device device) {
  TRIREME_CHECK(one_machine(), "allocate_run: ranks of several machines share none: use allocate");
  TRIREME_CHECK(bytes.size() == index(size()),
                "allocate_run: expected a number of bytes for each of {} ranks, found {}",
                {size(), bytes.size()});
  for (const std::int64_t part : bytes) {
    TRIREME_CHECK(part >= 0, "allocate_run: a part cannot have ", part, " bytes");
  }
  return take_memory({.bytes = 0, .run = bytes, .device = device});
}

SharedBuffer Communicator::take_memory(const detail::MemoryRequest& request) {
  detail::Backend& backend = parts_.queue->backend();
  const auto whole = static_cast<std::int64_t>(request.bytes);
  detail::Operation operation{
      .kind = OpKind::kAllocate,
      .counts = request.run,
      .total = std::accumulate(request.run.begin(), request.run.end(), whole),
      .device = request.device};
  if (!request.device.is_host()) {
    backend.check_memory(operation);  // before anything is announced
  }
  backend.announce_memory(request);
  // In its turn, with its size: ranks that ask for different sizes are told.
  issue(std::move(operation)).wait();
  std::shared_ptr<SharedBuffer::Impl> memory;
  on_all_ranks(*this, [&] {
    try {
      memory = backend.make_memory(request);
    } catch (const CommError& error) {
      throw parts_.queue->end(error);
    }
  });
  return SharedBuffer(std::move(memory));
}

std::shared_ptr<Communicator> Communicator::split(int color, int key, int sum_group) {
  TRIREME_CHECK(color >= 0 || color == kNoGroup,
                "split: expected a color of 0 or more, or Communicator::kNoGroup, found ",
                color);
  TRIREME_CHECK(sum_group >= 0, "split: sum_group must be a number of ranks, found ", sum_group);
  struct Choice {
    std::int32_t color, key, sum_group, unused;
    detail::GroupOffer offer;
  };
  const Choice mine{color, key, sum_group, 0, parts_.groups->offer()};
  std::vector<Choice> all(index(size()));
  constexpr std::int64_t kBytes = sizeof(Choice);
  all_gather({&mine, kBytes, Dtype::kUint8}, {all.data(), kBytes * size(), Dtype::kUint8}).wait();
  detail::GroupPlan plan;
  plan.parent = parts_.queue;
  plan.name =
      detail::concat(parts_.queue->options().group.empty() ? "" : "-", splits_++, ".", color);
  plan.name.insert(0, parts_.queue->options().group);
  plan.sum_group = sum_group > 0 ? sum_group : this->sum_group();
  if (color == kNoGroup) {
    return nullptr;
  }
  for (int peer = 0; peer < size(); ++peer) {
    const Choice& theirs = all[index(peer)];
    if (theirs.color != color) {
      continue;
    }
    TRIREME_CHECK(theirs.sum_group == sum_group,
                  "split: rank {} gives its group sum_group {} and rank {} gives it {}: it must be "
                  "the same on all ranks of a group",
                  {peer, theirs.sum_group, rank(), sum_group});
    plan.ranks.push_back(peer);
    plan.offers.push_back(theirs.offer);
  }
  std::stable_sort(plan.ranks.begin(), plan.ranks.end(), [&](int a, int b) {
    return all[index(a)].key < all[index(b)].key;
  });
  return parts_.groups->make(plan);
}

void Communicator::check_rank(OpKind kind, const char* what, int rank) const {
  TRIREME_CHECK(rank >= 0 && rank < size(),
                "{}: {} {} is outside the world of {} ranks: use 0 to {}",
                {op_name(kind), what, rank, size(), size() - 1});
}

Counts Communicator::checked_counts(OpKind kind, Counts counts, std::int64_t total) const {
  if (counts.empty()) {
    return even_counts(total, size());
  }
  TRIREME_CHECK(static_cast<int>(counts.size()) == size(),
                "{}: counts has {} entries for {} ranks: give one for each",
                {op_name(kind), counts.size(), size()});
  for (const std::int64_t count : counts) {
    TRIREME_CHECK(count >= 0, op_name(kind), ": counts cannot be negative, found ", count);
  }
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  TRIREME_CHECK(
      sum == total, op_name(kind), ": counts add up to ", sum, " elements, the data has ", total);
  return counts;
}

std::int64_t Communicator::agree_on_split(OpKind kind,
                                          bool at_root,
                                          std::int64_t numel_at_root,
                                          Counts* counts) const {
  if (!at_root && counts->empty()) {
    return -1;
  }
  const std::int64_t total =
      at_root ? numel_at_root : std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
  *counts = checked_counts(kind, std::move(*counts), total);
  return total;
}

Work Communicator::all_reduce(const Span& data, ReduceOp op, SumTerms terms) {
  check_can_reduce(OpKind::kAllReduce, op, data.dtype());
  check_terms(OpKind::kAllReduce, op, terms, data.numel());
  TRIREME_CHECK(!terms.accumulate, "all_reduce: only reduce_scatter can accumulate");
  return issue({.kind = OpKind::kAllReduce,
                .reduce = op,
                .dtype = data.dtype(),
                .input = data,
                .output = data,
                .counts = even_counts(data.numel(), size()),
                .terms = std::move(terms),
                .total = data.numel()});
}

Work Communicator::reduce_scatter(
    const ConstSpan& input, const Span& output, ReduceOp op, Counts counts, SumTerms terms) {
  constexpr auto kKind = OpKind::kReduceScatter;
  const bool widens = (input.dtype() == Dtype::kFloat16 || input.dtype() == Dtype::kBFloat16) &&
                      output.dtype() == Dtype::kFloat32 && op == ReduceOp::kSum;
  if (!widens) {
    check_same_dtype(kKind, input, output);
  }
  check_can_reduce(kKind, op, input.dtype());
  check_terms(kKind, op, terms, input.numel());
  const std::int64_t total = input.numel();
  counts = checked_counts(kKind, std::move(counts), total);
  check_numel(kKind, "output", counts[index(rank())], output.numel(), rank());
  return issue({.kind = kKind,
                .reduce = op,
                .dtype = input.dtype(),
                .input = input,
                .output = output,
                .counts = std::move(counts),
                .terms = std::move(terms),
                .total = total});
}

Work Communicator::all_gather(const ConstSpan& input, const Span& output, Counts counts) {
  constexpr auto kKind = OpKind::kAllGather;
  check_same_dtype(kKind, input, output);
  const std::int64_t total = output.numel();
  counts = checked_counts(kKind, std::move(counts), total);
  check_numel(kKind, "input", counts[index(rank())], input.numel(), rank());
  return issue({.kind = kKind,
                .dtype = input.dtype(),
                .input = input,
                .output = output,
                .counts = std::move(counts),
                .total = total});
}

Work Communicator::broadcast(const Span& data, int root) {
  check_rank(OpKind::kBroadcast, "root", root);
  return issue({.kind = OpKind::kBroadcast,
                .dtype = data.dtype(),
                .root = root,
                .input = rank() == root ? ConstSpan(data) : ConstSpan(nullptr, 0, data.dtype()),
                .output = data,
                .total = data.numel()});
}

Work Communicator::reduce(const Span& data, int root, ReduceOp op) {
  check_can_reduce(OpKind::kReduce, op, data.dtype());
  check_rank(OpKind::kReduce, "root", root);
  return issue({.kind = OpKind::kReduce,
                .reduce = op,
                .dtype = data.dtype(),
                .root = root,
                .input = data,
                .output = rank() == root ? data : Span(nullptr, 0, data.dtype()),
                .counts = even_counts(data.numel(), size()),
                .total = data.numel()});
}

Work Communicator::gather(const ConstSpan& input, const Span& output, int root, Counts counts) {
  constexpr auto kKind = OpKind::kGather;
  check_rank(kKind, "root", root);
  if (rank() == root) {
    check_same_dtype(kKind, input, output);
  }
  const std::int64_t total = agree_on_split(kKind, rank() == root, output.numel(), &counts);
  if (!counts.empty()) {
    check_numel(kKind, "input", counts[index(rank())], input.numel(), rank());
  }
  return issue({.kind = kKind,
                .dtype = input.dtype(),
                .root = root,
                .input = input,
                .output = rank() == root ? output : Span(nullptr, 0, input.dtype()),
                .counts = std::move(counts),
                .total = total});
}

Work Communicator::scatter(const ConstSpan& input, const Span& output, int root, Counts counts) {
  constexpr auto kKind = OpKind::kScatter;
  check_rank(kKind, "root", root);
  if (rank() == root) {
    check_same_dtype(kKind, input, output);
  }
  const std::int64_t total = agree_on_split(kKind, rank() == root, input.numel(), &counts);
  if (!counts.empty()) {
    check_numel(kKind, "output", counts[index(rank())], output.numel(), rank());
  }
  return issue({.kind = kKind,
                .dtype = output.dtype(),
                .root = root,
                .input = rank() == root ? input : ConstSpan(nullptr, 0, output.dtype()),
                .output = output,
                .counts = std::move(counts),
                .total = total});
}

Work Communicator::all_to_all(const ConstSpan& input, const Span& output, Counts send_counts) {
  constexpr auto kKind = OpKind::kAllToAll;
  check_same_dtype(kKind, input, output);
  const std::int64_t total = input.numel();
  send_counts = checked_counts(kKind, std::move(send_counts), total);
  return issue({.kind = kKind,
                .dtype = input.dtype(),
                .input = input,
                .output = output,
                .counts = std::move(send_counts),
                .total = total});
}

void Communicator::check_neighbours(const char* what, const std::vector<int>& ranks) const {
  constexpr auto kKind = OpKind::kNeighbourAllGather;
  for (auto each = ranks.begin(); each != ranks.end(); ++each) {
    check_rank(kKind, what, *each);
    TRIREME_CHECK(*each != rank() && std::find(ranks.begin(), each, *each) == each,
                  "{}: {} of rank {} must name other ranks, each once; found {}",
                  {op_name(kKind), what, rank(), detail::listed(ranks, [](int neighbour) {
                     return neighbour;
                   })});
  }
}

Work Communicator::neighbour_all_gather(const ConstSpan& input,
                                        const Span& output,
                                        const Neighbours& neighbours) {
  constexpr auto kKind = OpKind::kNeighbourAllGather;
  check_same_dtype(kKind, input, output);
  check_neighbours("Neighbours::from", neighbours.from);
  check_neighbours("Neighbours::to", neighbours.to);
  Counts counts(index(size()), detail::kNotHeard);
  for (const int to : neighbours.to) {
    counts[index(to)] = input.numel();
  }
  return issue({.kind = kKind,
                .dtype = input.dtype(),
                .input = input,
                .output = output,
                .counts = std::move(counts),
                .heard = neighbours.from,
                .total = input.numel()});
}

Work Communicator::send(const ConstSpan& data, int to, int tag) {
  check_rank(OpKind::kSend, "rank", to);
  const std::int64_t total = data.numel();
  return issue({.kind = OpKind::kSend,
                .dtype = data.dtype(),
                .peer = to,
                .tag = tag,
                .input = data,
                .total = total});
}

Work Communicator::recv(const Span& data, int from, int tag) {
  check_rank(OpKind::kRecv, "rank", from);
  const std::int64_t total = data.numel();
  return issue({.kind = OpKind::kRecv,
                .dtype = data.dtype(),
                .peer = from,
                .tag = tag,
                .output = data,
                .total = total});
}

std::optional<std::size_t> Communicator::wait_any(const std::vector<Work>& works,
                                                  Milliseconds most) {
  std::vector<WorkState*> states;
  for (const Work& work : works) {
    if (!work.state_) {
      return states.size();
    }
    states.push_back(work.state_.get());
  }
  return parts_.queue->wait_any(states, most);
}

Milliseconds Communicator::timeout() const {
  return parts_.queue->options().timeout;
}

Work Communicator::barrier() {
  return issue({.kind = OpKind::kBarrier});
}

}  // namespace trireme
