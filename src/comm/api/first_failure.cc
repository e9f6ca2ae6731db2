#include "trireme/comm/first_failure.h"

#include <cstdint>
#include <vector>

namespace trireme {

std::optional<RankFailure> first_failure(Communicator& ranks, const std::string& mine) {
  const std::vector<std::int64_t> length = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(length, lengths).wait();
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] > 0) {
      std::vector<std::uint8_t> text(static_cast<std::size_t>(lengths[rank]));
      if (static_cast<int>(rank) == ranks.rank()) {
        text.assign(mine.begin(), mine.end());
      }
      ranks.broadcast(text, static_cast<int>(rank)).wait();
      return RankFailure{static_cast<int>(rank), {text.begin(), text.end()}};
    }
  }
  return std::nullopt;
}

}  // namespace trireme
