#include "comm/algo/message_collectives.h"

#include <memory>
#include <utility>

namespace trireme::detail {
namespace {

// From this many ranks on, telling everyone takes longer than passing on.
constexpr int kManyRanks = 17;

}  // namespace

MessageCollectives::MessageCollectives(Channel& channel,
                                       Algorithm algorithm,
                                       int sum_group,
                                       NameOf name)
    : channel_(channel),
      algorithm_(algorithm),
      sum_group_(sum_group),
      name_(std::move(name)),
      pool_(channel.size()) {}

Algorithm MessageCollectives::algorithm_for(const Operation& op) const {
  if (algorithm_ == Algorithm::kAutomatic) {
    return channel_.size() >= kManyRanks ? Algorithm::kDoubling : Algorithm::kDirect;
  }
  // What has accumulators, absent terms or another type for its sums is made in one order only; an
  // average of integers divides what has not wrapped around on the way.
  if (algorithm_ == Algorithm::kRing && reduces(op.kind) &&
      (op.terms.accumulate ||
       (op.kind == OpKind::kReduceScatter && op.output.dtype() != op.dtype) ||
       (op.reduce == ReduceOp::kAverage && !is_float(op.dtype)))) {
    return Algorithm::kDirect;
  }
  return algorithm_;
}

Announcing MessageCollectives::announcing_for(const Operation& op) const {
  return algorithm_for(op) == Algorithm::kDoubling ? Announcing::kPassedOn : Announcing::kToAll;
}

bool MessageCollectives::is_special(const Operation& op) const {
  const bool is_small = fits_announcements(op, channel_.size(), announcing_for(op));
  switch (algorithm_for(op)) {
    case Algorithm::kAutomatic:
    case Algorithm::kDirect:
      return false;
    case Algorithm::kRing:
      return !is_small && (reduces(op.kind) || op.kind == OpKind::kAllGather);
    case Algorithm::kTree:
      return !is_small && op.kind == OpKind::kBroadcast;
    case Algorithm::kDoubling:
      return is_small;
    case Algorithm::kAggregator:
      return !is_small && reduces(op.kind);
  }
  return false;
}

Steps MessageCollectives::start(const Call& call) {
  const Announcing announcing = announcing_for(call.operation);
  auto net_call = std::make_unique<NetCall>(channel_, pool_, call, announcing, sum_group_);
  if (announcing == Announcing::kToAll) {
    net_call->announce_to_all();
  }
  return run(std::move(net_call), announcing);
}

Steps MessageCollectives::run(std::unique_ptr<NetCall> call, Announcing announcing) {
  if (announcing == Announcing::kPassedOn) {
    Part telling(announce_by_doubling(*call));
    co_await telling;
  }
  AllAnnounced announced(*call, name_);
  if (call->needs_announcements_only()) {
    if (call->operation().kind != OpKind::kBarrier) {
      co_await AllPosted();  // with the announcement
    }
    co_await announced;
    finish_from_announcements(*call);
  } else {
    Part large(steps_for_large(*call, announced));
    co_await large;
  }
  co_await AllPosted();
  // Everyone has issued the call by now, and takes the announcement.
  co_await Completed(call->announcements());
}

// What does not travel with the announcements.
Steps MessageCollectives::steps_for_large(NetCall& call, AllAnnounced& announced) {
  const Algorithm algorithm = algorithm_for(call.operation());
  switch (call.operation().kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      switch (algorithm) {
        case Algorithm::kRing:
          return ring_reduction(call, announced);
        case Algorithm::kAggregator:
          return aggregated_reduction(call, announced);
        default:
          return direct_reduction(call, announced);
      }
    case OpKind::kAllGather:
      return algorithm == Algorithm::kRing ? ring_all_gather(call, announced)
                                           : direct_all_gather(call, announced);
    case OpKind::kBroadcast:
      return tree_broadcast(call, announced);
    default:
      return direct_exchange(call, announced, name_);
  }
}

}  // namespace trireme::detail
