#include "stop_signal.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "trireme/comm/tell.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::worker {
namespace {

using detail::concat;

volatile std::sig_atomic_t g_stop = 0;

}  // namespace

void watch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { g_stop = number; };
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    // What nohup or a script in the background had ignored stays ignored.
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaction(number, &action, nullptr);
    }
  }
}

bool wants_stop() {
  return g_stop != 0;
}

int exit_code_of_stop(World& world) {
  const int signal = g_stop;
  const std::vector<std::string> asked =
      all_texts(world, signal != 0 ? std::to_string(signal) : "");
  std::int64_t number = 0;
  std::string ranks;
  for (std::size_t rank = 0; rank < asked.size(); ++rank) {
    if (const auto its = parse_integer(asked[rank])) {
      number = number != 0 ? number : *its;
      ranks += concat(ranks.empty() ? "rank " : ", ", rank);
    }
  }
  const bool of_some = std::count(asked.begin(), asked.end(), "") > 0;
  if (world.rank() == 0 && of_some) {  // else it was the launcher, which says so itself
    std::fprintf(stderr,
                 "trireme: %s of %d was asked to end by signal %d (%s), which ends the job\n",
                 ranks.c_str(),
                 world.size(),
                 static_cast<int>(number),
                 strsignal(static_cast<int>(number)));
  }
  return 128 + static_cast<int>(number);
}

}  // namespace trireme::worker
