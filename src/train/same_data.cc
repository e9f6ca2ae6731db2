#include "train/same_data.h"

#include <vector>

#include "train/train_progress.h"
#include "trireme/core/error.h"

namespace trireme::detail {

std::int64_t fingerprint_of_all_ranks(const Parts& data, Communicator& ranks) {
  const std::int64_t fingerprint = fingerprint_of(data);
  const std::vector<std::int64_t> mine = {
      data.train->size(), data.held_out ? data.held_out->size() : 0, fingerprint};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(mine, all).wait();
  // The same loop everywhere: either all ranks throw, or none.
  for (std::size_t rank = 1; rank < static_cast<std::size_t>(ranks.size()); ++rank) {
    const std::int64_t* of = all.data() + rank * mine.size();
    TRIREME_CHECK(of[0] == all[0] && of[1] == all[1],
                  "data: expected the same samples on every rank, found ",
                  all[0],
                  " to train on and ",
                  all[1],
                  " to evaluate on rank 0, but ",
                  of[0],
                  " and ",
                  of[1],
                  " on rank ",
                  rank,
                  ": use the same files on every machine");
    TRIREME_CHECK(of[2] == all[2],
                  "data: expected the same samples on every rank, found others on rank ",
                  rank,
                  " than on rank 0, although their number is the same: use the same files on every "
                  "machine");
  }
  return fingerprint;
}

}  // namespace trireme::detail
