#include <csignal>
#include <cstdio>
#include <limits>

#include <malloc.h>

#include "known_warnings.h"
#include "stop_signal.h"
#include "train_job.h"
#include "trireme/comm/elastic.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"
#include "trireme/settings/settings_table.h"
#include "worker.h"

namespace trireme::worker {
namespace {

using detail::concat;

// Activations are freed and allocated again in every step. Left to itself, the C library gives
// large blocks back to the kernel and gets them anew, page by page, which took 5 % of a convnet's
// step.
void keep_freed_memory() {
  constexpr int kLargestThreshold = 32 << 20;  // of the C library
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

// "rank 0 of 2: REASON (found by rank 1)", as a communicator has it.
std::string without_ranks(const std::string& text) {
  const std::size_t begin = text.find(": ");
  const std::size_t end = text.rfind(" (found by rank ");
  return begin == std::string::npos || end == std::string::npos || end < begin
             ? text
             : text.substr(begin + 2, end - begin - 2);
}

// One epoch of the job.
int train_in(const std::shared_ptr<World>& world, const std::string& step) {
  TrainJob job(world, step);
  watch_signals();  // before there is a world there is nothing to end in good order
  try {
    return job.run();
  } catch (const CommError& error) {
    if (error.reason() == CommError::Reason::kStopped) {
      job.take_back_settings();  // it is another rank that cannot use them
    }
    // The others know. Why a rank has left them alone is told by rank 0, once; what is wrong with
    // the input is no matter of ranks.
    const bool stopped = error.reason() == CommError::Reason::kStopped;
    if (job.rank() == 0 && stopped) {
      std::fprintf(stderr, "trireme: %s\n", without_ranks(error.what()).c_str());
    }
    if (stopped || (job.rank() > 0 && error.reason() == CommError::Reason::kAborted)) {
      return 1;
    }
    throw;
  } catch (const std::exception& error) {
    // Most failures are seen by all ranks alike; one says so. What only this rank has seen reaches
    // rank 0 as the reason why it was left alone.
    const bool usage = dynamic_cast<const ConfigError*>(&error) != nullptr;
    const std::string reason = usage ? with_flags(error.what(), {}) : detail::reason_of(error);
    // A gradient that is not finite, and names its rank, is no matter of communication either.
    const bool refused = job.refuses(error);
    const bool by_input = refused || dynamic_cast<const DataError*>(&error) != nullptr ||
                          dynamic_cast<const GradientError*>(&error) != nullptr;
    job.abandon(by_input ? reason : concat("rank ", job.rank(), ": ", reason), by_input);
    if (job.rank() == 0) {
      std::fprintf(stderr, "trireme: %s\n", reason.c_str());
    }
    return refused ? kExitUsage : 1;
  }
}

}  // namespace

int train_as_rank(const std::string& step) {
  // Rank 0 writes to the terminal from a process group of its own: not a reason to stop it.
  std::signal(SIGTTOU, SIG_IGN);
  keep_freed_memory();
  SlowProductsAreKnown handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  return run_elastic([&](const std::shared_ptr<World>& world) { return train_in(world, step); });
}

}  // namespace trireme::worker
