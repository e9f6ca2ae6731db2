#include "support/ranks.h"

#include <atomic>
#include <cstdio>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::testing {

std::string unique_job() {
  static std::atomic<int> count{0};
  return detail::concat("test ", getpid(), " ", count++);
}

InitOptions options_for(const std::string& job, int rank, int size) {
  InitOptions options;
  options.rank = rank;
  options.size = size;
  options.job = job;
  options.token = "the token of this test";
  options.timeout = std::chrono::seconds(60);
  return options;
}

pid_t fork_rank(int rank, const std::function<void(int rank)>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) {
    return pid;
  }
  try {
    body(rank);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d threw: %s\n", rank, error.what());
    std::fflush(nullptr);
    _exit(3);
  }
  std::fflush(nullptr);
  // Not exit(): the parent's gtest must not report twice.
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

std::vector<int> fork_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    pids.push_back(fork_rank(rank, body));
  }
  std::vector<int> statuses;
  for (int rank = 0; rank < size; ++rank) {
    statuses.push_back(wait_for(pids[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(statuses.back(), 0) << "rank " << rank << " of " << size << " failed";
  }
  return statuses;
}

void fork_world(int size,
                const std::function<void(World& world)>& body,
                const std::function<void(InitOptions& options)>& adjust) {
  const std::string job = unique_job();
  fork_ranks(size, [&](int rank) {
    InitOptions options = options_for(job, rank, size);
    if (adjust) {
      adjust(options);
    }
    const auto world = init(options);
    body(*world);
  });
}

void spawn_world(int size,
                 const std::function<void(World& world)>& body,
                 const std::function<void(InitOptions& options)>& adjust) {
  const std::string job = unique_job();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        InitOptions options = options_for(job, rank, size);
        if (adjust) {
          adjust(options);
        }
        const auto world = init(options);
        body(*world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace trireme::testing
