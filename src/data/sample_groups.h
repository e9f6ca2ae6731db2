#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/core/error.h"

namespace trireme::detail {

// The samples 0 ... n - 1 sorted by a group, in rising order within each: 4 bytes per sample, 8
// where their number needs it.
class SampleGroups {
 public:
  SampleGroups() = default;

  // `group_of(sample)` is from 0 to groups - 1; it is asked twice for each sample.
  template <class GroupOf>
  SampleGroups(std::int64_t n, std::int64_t groups, GroupOf group_of)
      : begins_(static_cast<std::size_t>(groups) + 1, 0) {
    for (std::int64_t sample = 0; sample < n; ++sample) {
      ++begins_[static_cast<std::size_t>(group_of(sample)) + 1];
    }
    for (std::size_t group = 1; group < begins_.size(); ++group) {
      begins_[group] += begins_[group - 1];
    }
    if (n <= std::numeric_limits<std::uint32_t>::max()) {
      sort_into(narrow_, n, group_of);
    } else {
      sort_into(wide_, n, group_of);
    }
  }

  // Group g is members [begin(g), end(g)).
  std::int64_t begin(std::int64_t group) const { return begins_[static_cast<std::size_t>(group)]; }
  std::int64_t end(std::int64_t group) const {
    return begins_[static_cast<std::size_t>(group) + 1];
  }
  std::int64_t member(std::int64_t place) const {
    const auto at = static_cast<std::size_t>(place);
    return wide_.empty() ? std::int64_t{narrow_[at]} : wide_[at];
  }

 private:
  template <class Number, class GroupOf>
  void sort_into(std::vector<Number>& members, std::int64_t n, GroupOf& group_of) {
    members.resize(static_cast<std::size_t>(n));
    std::vector<std::int64_t> next(begins_.begin(), begins_.end() - 1);
    for (std::int64_t sample = 0; sample < n; ++sample) {
      const auto group = static_cast<std::size_t>(group_of(sample));
      std::int64_t& place = next[group];
      TRIREME_CHECK(place < begins_[group + 1],
                    "the group of sample ",
                    sample,
                    " changed from one call to the next: it must depend on the sample alone");
      members[static_cast<std::size_t>(place++)] = static_cast<Number>(sample);
    }
  }

  std::vector<std::int64_t> begins_;
  std::vector<std::uint32_t> narrow_;
  std::vector<std::int64_t> wide_;
};

}  // namespace trireme::detail
