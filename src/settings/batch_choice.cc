#include "settings/batch_choice.h"

#include <algorithm>
#include <numeric>

#include "settings/step_schedule.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

// Also of the table; products of what is below it are counted without overflow.
constexpr std::int64_t kLargestBatch = 1'000'000'000'000;

// The largest divisor of the batch up to `most`.
std::int64_t divisor_of(std::int64_t batch, std::int64_t most) {
  std::int64_t best = 1;
  for (std::int64_t size = 1; size * size <= batch; ++size) {
    if (batch % size == 0) {
      for (const std::int64_t divisor : {size, batch / size}) {
        best = divisor <= most ? std::max(best, divisor) : best;
      }
    }
  }
  return best;
}

// As many as this machine lets run at a time, with some memory for each.
std::int64_t ranks_of_this_machine() {
  constexpr std::uint64_t kMemoryOfARank = std::uint64_t{512} << 20;
  const auto processors = static_cast<std::int64_t>(allowed_cpus().size());
  const std::int64_t quota = cpu_quota();
  const auto room = static_cast<std::int64_t>(available_memory_bytes() / kMemoryOfARank);
  return std::max<std::int64_t>(
      1, std::min({processors, quota > 0 ? quota : processors, room, std::int64_t{4096}}));
}

// Follows from the model and the batch alone, so that the same command gives the same bits on every
// machine: large enough for matrix products, small enough for memory, and at most half a batch, so
// that two ranks have work (a batch below 4 is not worth dividing).
std::int64_t fixed_micro_batch(const TrainSettings& s, std::int64_t most) {
  std::int64_t common = s.batch;
  std::int64_t smallest = s.batch;
  for (const BatchChange& change : batch_changes(s)) {
    common = std::gcd(common, change.batch);
    smallest = std::min(smallest, change.batch);
  }
  const std::int64_t half =
      divisor_of(common, std::min(most, std::max<std::int64_t>(1, smallest / 2)));
  // Batches of 7, say: single samples would be slower than a rank without work, and no batch for
  // batch normalisation.
  return smallest < 4 || half == 1 ? divisor_of(common, most) : half;
}

}  // namespace

void detail::choose_batch(TrainSettings& s, const ModelKind& kind) {
  const auto given = parse_integer(s.micro_batch);
  const bool by_ranks = s.accumulate > 0 || s.micro_batch == "share" || s.micro_batch == "auto";
  if (s.ranks == 0 && by_ranks) {
    s.ranks = ranks_of_this_machine();
  }
  TRIREME_CHECK((given && *given >= 1) || s.micro_batch == "fixed" || s.micro_batch == "share" ||
                    s.micro_batch == "auto",
                "micro_batch: expected a number of 1 or more, fixed, share or auto, found \"{}\"",
                {s.micro_batch});
  const std::int64_t ranks = std::max<std::int64_t>(1, s.ranks);
  TRIREME_CHECK(given.value_or(1) <= kLargestBatch && s.accumulate <= kLargestBatch / ranks &&
                    s.accumulate * ranks <= kLargestBatch / given.value_or(1),
                "micro_batch, accumulate: expected a batch of at most {}, found micro_batch {}, "
                "accumulate {} and ranks {}",
                {kLargestBatch, s.micro_batch, s.accumulate, s.ranks});
  if (s.batch == 0) {
    s.batch = s.accumulate > 0 && given ? *given * s.accumulate * s.ranks : kind.defaults.batch;
  }
  if (s.accumulate > 0) {
    const std::int64_t micro_batches = s.accumulate * s.ranks;
    TRIREME_CHECK(s.batch % micro_batches == 0,
                  "batch: expected a multiple of accumulate x ranks = {} x {}, found {}",
                  {s.accumulate, s.ranks, s.batch});
    const std::int64_t size = s.batch / micro_batches;
    TRIREME_CHECK(!given || *given == size,
                  "batch: expected micro_batch x accumulate x ranks = {} x {} x {}, found {}; "
                  "leave one of them out",
                  {given.value_or(0), s.accumulate, s.ranks, s.batch});
    s.micro_batch = std::to_string(size);
    s.accumulate = 0;
  } else if (s.micro_batch == "share") {
    // Where the ranks do not divide the batch, some compute a micro-batch more than others.
    s.micro_batch =
        std::to_string(divisor_of(s.batch, std::max<std::int64_t>(1, s.batch / s.ranks)));
  } else if (s.micro_batch == "fixed") {
    s.micro_batch = std::to_string(fixed_micro_batch(s, kind.most_micro_batch));
  }
  const auto size = parse_integer(s.micro_batch);
  TRIREME_CHECK(!size || s.batch % *size == 0,
                "micro_batch: expected a divisor of the batch of {}, found {}",
                {s.batch, size.value_or(0)});
  if (s.ranks == 0) {
    s.ranks = std::min(ranks_of_this_machine(), s.batch / size.value_or(1));
  }
  for (const BatchChange& change : batch_changes(s)) {
    TRIREME_CHECK(!size || change.batch % *size == 0,
                  "batch_schedule: expected multiples of the micro-batch of {}, found {}",
                  {*size, change.batch});
  }
}

std::vector<BatchChange> batch_changes(const TrainSettings& settings) {
  const std::string expected =
      detail::concat("STEP:BATCH like 1000:256, with a batch of at most ", kLargestBatch);
  std::vector<BatchChange> changes;
  for (const auto& [step, batch] : detail::schedule_entries(
           {"batch_schedule", expected.c_str(), 1, kLargestBatch}, settings.batch_schedule)) {
    changes.push_back({step, batch});
  }
  return changes;
}

}  // namespace trireme
