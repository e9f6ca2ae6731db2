#include "support/ranks.h"

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "support/free_port.h"
#include "support/machines.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme::testing {

namespace {

std::string layout() {
  return env_string("TRIREME_TEST_LAYOUT").value_or("");
}

// The machines of this test program, made when they are first needed.
Machines& machines() {
  static Machines all(static_cast<int>(*parse_integer(layout().substr(layout().find(':') + 1))));
  return all;
}

bool on_machines() {
  return layout().starts_with("machines:");
}

// Consecutive ranks, as many on each machine as possible, the first ones having one more.
struct Seat {
  int machine = 0;
  int machines = 1;
  int local_rank = 0;
  int local_size = 1;
};

Seat seat_of(int rank, int size) {
  Seat seat;
  seat.machines = std::min(size, machines().size());
  for (seat.machine = 0; seat.machine < seat.machines; ++seat.machine) {
    const Range range = even_range(size, seat.machines, seat.machine);
    if (rank < range.end) {
      seat.local_rank = rank - static_cast<int>(range.begin);
      seat.local_size = static_cast<int>(range.size());
      break;
    }
  }
  return seat;
}

class LayoutCheck final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!on_machines()) {
      return;
    }
    if (const auto why = Machines::unavailable(layout() == "machines:2" ? "" : "switch")) {
      GTEST_SKIP() << "the layout cannot be had: " << *why;
    }
  }
};

const auto* const layout_check = ::testing::AddGlobalTestEnvironment(new LayoutCheck);

// What every_rank.py looks for. Launchers end all ranks when one has ended in their eyes badly, as
// after a failure that was to be tested: each waits until all have reported.
class RankReport final : public ::testing::EmptyTestEventListener {
 public:
  static constexpr Milliseconds kPatience{20'000};

  void tested(const World& world) {
    rank_ = world.rank();
    size_ = world.size();
  }

  void OnTestProgramEnd(const ::testing::UnitTest& all) override {
    const auto folder = env_string("TRIREME_TEST_REPORTS");
    if (!folder || size_ == 0) {
      return;
    }
    const auto path = [&](int rank) { return detail::concat(*folder, "/", rank); };
    const std::string draft = path(rank_) + ".draft";
    std::ofstream(draft) << (all.Passed() ? detail::concat("passed as one of ", size_) : "failed");
    std::filesystem::rename(draft, path(rank_));
    const Deadline patience(kPatience);
    for (int rank = 0; rank < size_; ++rank) {
      while (!std::filesystem::exists(path(rank)) && !patience.passed()) {
        std::this_thread::sleep_for(Milliseconds(5));
      }
    }
  }

 private:
  int rank_ = 0;
  int size_ = 0;  // none: no world was tested
};

RankReport& rank_report() {
  static auto* const report = [] {
    auto* made = new RankReport;
    ::testing::UnitTest::GetInstance()->listeners().Append(made);  // which owns it
    return made;
  }();
  return *report;
}

}  // namespace

bool in_external_layout() {
  return layout() == "external";
}

bool in_shared_memory() {
  return layout().empty();
}

Machines& layout_machines() {
  return machines();
}

int sum_group() {
  static const auto group =
      static_cast<int>(env_integer("TRIREME_SUM_GROUP", 1, 1 << 20).value_or(1));
  return group;  // asked for with every element of a sum
}

std::string unique_job() {
  static std::atomic<int> count{0};
  // The last word is the port where the ranks can meet.
  const int number = count++;
  const int port =
      layout() == "ucx" ? free_port() : 20000 + (getpid() % 100 * 100 + number) % 12000;
  return detail::concat("test ", getpid(), " ", number, " ", port);
}

InitOptions options_for(const std::string& job, int rank, int size) {
  InitOptions options;
  options.rank = rank;
  options.size = size;
  options.job = job;
  options.token = "the token of this test";
  options.timeout = std::chrono::seconds(60);
  const std::string port = job.substr(job.rfind(' ') + 1);
  if (layout() == "ucx") {
    options.backend = "ucx";
    options.rendezvous = "127.0.0.1:" + port;
  } else if (on_machines()) {
    // This process is one rank: it finds its place as under a launcher.
    const Seat seat = seat_of(rank, size);
    options.rank.reset();
    options.size.reset();
    options.rendezvous = machines().address(0) + ":" + port;
    options.interfaces = {"eth0"};
    const auto set = [](const char* name, int value) {
      setenv(name, std::to_string(value).c_str(), 1);
    };
    set(kEnvRank, rank);
    set(kEnvSize, size);
    set(kEnvLocalRank, seat.local_rank);
    set(kEnvLocalSize, seat.local_size);
  } else if (in_external_layout()) {
    options.rank.reset();
    options.size.reset();
    options.job.clear();
  }
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
    if (on_machines()) {
      machines().inside(seat_of(rank, size).machine,
                        [&] { pids.push_back(fork_rank(rank, body)); });
    } else {
      pids.push_back(fork_rank(rank, body));
    }
  }
  std::vector<int> statuses;
  for (int rank = 0; rank < size; ++rank) {
    statuses.push_back(wait_for(pids[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(statuses.back(), 0) << "rank " << rank << " of " << size << " failed";
  }
  return statuses;
}

namespace {

// This process is a rank already; tests of worlds of other sizes are skipped.
void outside_world(int size,
                   const std::function<void(World& world)>& body,
                   const std::function<void(InitOptions& options)>& adjust) {
  InitOptions options = options_for("", 0, 0);
  if (adjust) {
    adjust(options);
  }
  const auto world = init(options);
  if (world->size() != size) {
    GTEST_SKIP() << kOtherSize << size << " ranks, this one has " << world->size();
  }
  rank_report().tested(*world);
  body(*world);
}

}  // namespace

void fork_world(int size,
                const std::function<void(World& world)>& body,
                const std::function<void(InitOptions& options)>& adjust) {
  if (in_external_layout()) {
    outside_world(size, body, adjust);
    return;
  }
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
  if (in_external_layout()) {
    outside_world(size, body, adjust);
    return;
  }
  if (!layout().empty()) {
    // A process is on one machine; and UCX does not survive a fork of its process.
    fork_world(size, body, adjust);
    return;
  }
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
