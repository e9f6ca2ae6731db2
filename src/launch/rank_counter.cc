#include "launch/rank_counter.h"

#include <algorithm>
#include <utility>

#include "trireme/core/index.h"

namespace trireme::detail {

void RankCounter::take_over() {
  before_.emplace();
}

void RankCounter::know(int machine, const EpochOrder& last) {
  reached_.raise(last.reached);
  if (!before_) {
    return;
  }
  std::vector<std::int64_t>& worlds = before_->worlds;
  worlds.resize(std::max(worlds.size(), index(machine) + 1), -1);
  worlds[index(machine)] = last.epoch;
  if (!before_->last || before_->last->epoch < last.epoch) {
    before_->last = last;
  }
}

void RankCounter::leader_has_left(int machine, Rest rest) {
  lost_ += rest.lost;
  left_ += rest.left;
  leader_ = {machine, std::move(rest)};
}

void RankCounter::count(const std::vector<Part>& parts, EpochOrder& order) {
  if (before_) {
    count_after_another_leader(order);
  } else {
    ++counts_.times;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const int goes_on = order.ranks[i] - order.starts[i];
      left_ += parts[i].members - goes_on + std::max(0, parts[i].follows - order.starts[i]);
      counts_.joined += std::max(0, order.starts[i] - parts[i].follows);
    }
  }
  before_.reset();
  counts_.lost += std::exchange(lost_, 0);
  counts_.left += std::exchange(left_, 0);
  order.counts = counts_;
  order.reached = reached_;
}

// All ranks are started anew: in the place of those that their own launcher has ended, which are
// neither lost nor new, and of those that went with their machine.
void RankCounter::count_after_another_leader(const EpochOrder& order) {
  if (!before_->last) {
    return;  // the first world of the job, or the first that anybody knows
  }
  const EpochOrder& last = *before_->last;
  counts_ = last.counts;
  ++counts_.times;
  for (std::size_t i = 0; i < order.ranks.size(); ++i) {
    const std::vector<int>& ranks = leader_ ? leader_->rest.ranks : last.ranks;
    const int then = i < ranks.size() ? ranks[i] : 0;
    const bool was_in = i < before_->worlds.size() && before_->worlds[i] == last.epoch;
    const int again = was_in ? std::min(then, order.ranks[i]) : 0;
    const bool in_order = was_in || (leader_ && static_cast<int>(i) == leader_->machine);
    (in_order ? left_ : lost_) += then - again;
    counts_.joined += order.ranks[i] - again;
  }
}

}  // namespace trireme::detail
