// Processes that lose others of their world over UCX, and go on in another one, again and again:
// sums are right in each, and nothing of the lost ones stays.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cluster/shared_numbers.h"
#include "support/free_port.h"
#include "support/machines.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme::new_worlds_test {
namespace {

using testing::comes_true;
using testing::fork_rank;
using testing::free_port;
using testing::Machines;
using testing::SharedNumbers;
using testing::wait_for;

int count_in(const char* folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder),
                                        std::filesystem::directory_iterator()));
}

// Memory that cannot be touched after it is gone.
class Pages {
 public:
  explicit Pages(std::size_t floats)
      : bytes_(floats * sizeof(float)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }
  float* begin() { return static_cast<float*>(data_); }
  float* end() { return begin() + bytes_ / sizeof(float); }
  Span span() { return {data_, end() - begin(), Dtype::kFloat32}; }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr std::size_t kFloats = 1'500'003;

// Sums in the world and in a group, a window, and messages in both directions that nobody will
// receive; then the end of `victim`, which the others hear of. Memory goes before the world does.
void live_in(const std::shared_ptr<World>& world, int victim, const std::function<void()>& end) {
  const int size = world->size();
  const auto group = world->split(0);
  Pages exposed(1000);
  std::fill(exposed.begin(), exposed.end(), static_cast<float>(world->rank()));
  const auto window =
      world->expose(reinterpret_cast<std::byte*>(exposed.begin()), exposed.span().size_bytes());
  Pages data(kFloats);
  Pages out(kFloats);
  Pages in(kFloats);
  for (int round = 0; round < 3; ++round) {
    for (Communicator* ranks : {static_cast<Communicator*>(world.get()), group.get()}) {
      std::fill(data.begin(), data.end(), static_cast<float>(world->rank() + round));
      ranks->all_reduce(data.span()).wait();
      const auto sum = static_cast<float>(size * (size - 1) / 2 + size * round);
      ASSERT_EQ(std::count(data.begin(), data.end(), sum), data.end() - data.begin());
    }
  }
  float read = -1;
  const int next = (world->rank() + 1) % size;
  window->read(next, 4 * 999, 4, reinterpret_cast<std::byte*>(&read));
  ASSERT_EQ(read, static_cast<float>(next));
  world->barrier().wait();
  try {
    Work sent = group->send(out.span(), next, 7);
    Work received = group->recv(in.span(), next, 9);
    sent.forget();
    received.forget();
    if (world->rank() == victim) {
      end();
    }
    for (;;) {
      world->all_reduce(data.span()).wait();
    }
  } catch (const CommError& error) {
    EXPECT_NE(error.reason(), CommError::Reason::kMismatch) << error.what();
  }
}

InitOptions options_of(const std::string& place, int rank, int size, std::int64_t epoch) {
  InitOptions options;
  options.rank = rank;
  options.size = size;
  options.job = place;
  options.token = "the token of this test";
  options.backend = "ucx";
  options.rendezvous = place;
  options.epoch = epoch;
  options.timeout = std::chrono::seconds(60);
  return options;
}

// Two processes live through all worlds; the third is another one in each. Any of the three is rank
// 0 in turn. (UCX's transports, how many worlds)
class NewWorldsTest : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(NewWorldsTest, AfterAKilledRank) {
  const std::string transports = GetParam().first;
  const int worlds = GetParam().second;
  // In the shared memory of UCX, messages have several fragments: where one is interrupted, the
  // memory that UCX has, and with it the connection, is kept.
  const bool all_end = transports == "tcp";
  constexpr int kFirst = 3;  // when all that is made once is there
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  const auto world_of = [&](int process, int epoch) {
    const int rank = (process + epoch) % 3;
    setenv("UCX_TLS", transports.c_str(), 1);
    return init(options_of(place, rank, 3, epoch));
  };
  const auto victim_of = [](int epoch) { return (2 + epoch) % 3; };
  std::vector<pid_t> lasting;
  for (const int process : {0, 1}) {
    lasting.push_back(fork_rank(process, [&](int) {
      int descriptors = 0;
      int threads = 0;
      for (int epoch = 0; epoch < worlds; ++epoch) {
        live_in(world_of(process, epoch), victim_of(epoch), [] {});
        if (epoch == kFirst) {
          descriptors = count_in("/proc/self/fd");
          threads = count_in("/proc/self/task");
        }
      }
      if (all_end) {
        EXPECT_LE(count_in("/proc/self/fd"), descriptors);
        EXPECT_LE(count_in("/proc/self/task"), threads);
      }
    }));
  }
  for (int epoch = 0; epoch < worlds; ++epoch) {
    const pid_t third = fork_rank(2, [&](int) {
      live_in(world_of(2, epoch), victim_of(epoch), [] { kill(getpid(), SIGKILL); });
    });
    const int status = wait_for(third);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "world " << epoch;
  }
  for (const pid_t pid : lasting) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(OverUcx,
                         NewWorldsTest,
                         ::testing::Values(std::pair("tcp", 50), std::pair("all", 10)));

// The first instructions of what UCX would hook, had it been loaded before all threads.
std::string code_of_the_library() {
  void* const library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  std::string code;
  for (const char* name : {"mmap", "munmap", "mremap", "brk", "sbrk", "madvise", "shmat"}) {
    code.append(static_cast<const char*>(dlsym(library, name)), 16);
  }
  return code;
}

TEST(NewWorlds, LeaveTheCodeOfTheLibraryAsItIs) {
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1}) {
    ranks.push_back(fork_rank(rank, [&](int) {
      const std::string before = code_of_the_library();
      const auto world = init(options_of(place, rank, 2, 0));
      EXPECT_NE(world->description().find("UCX"), std::string::npos) << world->description();
      EXPECT_TRUE(code_of_the_library() == before);
      world->barrier().wait();
    }));
  }
  for (const pid_t pid : ranks) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

// A machine that is cut off hears nothing and is not heard: those of the others go on without it.
TEST(NewWorlds, AfterAMachineThatIsCutOff) {
  for (const char* feature : {"", "switch", "cut"}) {
    if (const auto reason = Machines::unavailable(feature)) {
      GTEST_SKIP() << *reason;
    }
  }
  constexpr int kWorlds = 4;
  const Machines machines(3);
  SharedNumbers<int> cut(1);
  const std::string place = machines.address(0) + ":29123";
  // One rank on each: they find their place as under a launcher.
  const auto options = [&](int rank, int size, int epoch) {
    InitOptions with = options_of(place, rank, size, epoch);
    with.rank.reset();
    with.size.reset();
    with.backend = "auto";
    const auto set = [](const char* name, int value) {
      setenv(name, std::to_string(value).c_str(), 1);
    };
    set(kEnvRank, rank);
    set(kEnvSize, size);
    set(kEnvLocalRank, 0);
    set(kEnvLocalSize, 1);
    with.interfaces = {"eth0"};
    with.timeout = std::chrono::seconds(3);
    return with;
  };
  std::vector<pid_t> lasting;
  for (const int process : {0, 1}) {
    machines.inside(process, [&] {
      lasting.push_back(fork_rank(process, [&](int) {
        std::vector<int> descriptors;
        std::vector<int> threads;
        for (int epoch = 0; epoch < kWorlds; ++epoch) {
          live_in(init(options(process, 3, 2 * epoch)), 2, [] {});
          // A world of those that are left, while the third is away.
          const auto world = init(options(process, 2, 2 * epoch + 1));
          std::vector<float> sum(kFloats, static_cast<float>(process + 1));
          world->all_reduce(sum).wait();
          EXPECT_EQ(std::count(sum.begin(), sum.end(), 3.0F), std::ssize(sum));
          descriptors.push_back(count_in("/proc/self/fd"));
          threads.push_back(count_in("/proc/self/task"));
          world->barrier().wait();
          ++cut[0];
        }
        EXPECT_LE(descriptors.back(), descriptors.front());
        EXPECT_LE(threads.back(), threads.front());
      }));
    });
  }
  for (int epoch = 0; epoch < kWorlds; ++epoch) {
    pid_t third = -1;
    SharedNumbers<int> there(1);
    machines.inside(2, [&] {
      third = fork_rank(2, [&](int) {
        live_in(init(options(2, 3, 2 * epoch)), 2, [&] {
          there[0] = 1;
          pause();
        });
      });
    });
    EXPECT_TRUE(comes_true([&] { return there[0] == 1; }));
    machines.cut(2);
    EXPECT_TRUE(comes_true([&] { return cut[0] == 2 * (epoch + 1); }));
    kill(third, SIGKILL);
    wait_for(third);
    machines.mend(2);
  }
  for (const pid_t pid : lasting) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

}  // namespace
}  // namespace trireme::new_worlds_test
