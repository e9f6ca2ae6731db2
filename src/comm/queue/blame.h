#pragma once

#include <algorithm>
#include <functional>
#include <vector>

namespace trireme::detail {

// Who holds up the ranks in `late`: each is followed to the one that it waits for, `most` times.
// `next` says for each of some ranks whom it waits for, -1 where it does not wait, or nobody knows:
// that is the one to blame. In a circle everybody is; then those in `late` stay.
inline std::vector<int> follow(
    const std::vector<int>& late,
    int most,
    const std::function<std::vector<int>(const std::vector<int>&)>& next) {
  std::vector<int> at = late;
  for (int hop = 0; hop < most; ++hop) {
    const std::vector<int> then = next(at);
    bool moved = false;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (then[i] >= 0 && then[i] != at[i]) {
        at[i] = then[i];
        moved = true;
      }
    }
    if (!moved) {
      std::ranges::sort(at);
      at.erase(std::ranges::unique(at).begin(), at.end());
      return at;
    }
  }
  return late;
}

}  // namespace trireme::detail
