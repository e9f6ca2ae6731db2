#include "trireme/comm/work.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;
using testing::spawn_world;

TEST(Work, OperationsInFlightFinishInOrder) {
  spawn_world(3, [](World& world) {
    std::vector<std::vector<float>> data;
    std::vector<Work> works;
    for (int i = 0; i < 100; ++i) {  // more than there are slots: issuing makes progress too
      data.emplace_back(1000 * (i % 7 + 1), static_cast<float>(world.rank() + i));
    }
    for (auto& values : data) {
      works.push_back(world.all_reduce(values));
    }
    works.back().wait();
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(works[static_cast<std::size_t>(i)].done())
          << i;  // the last is finished: so are all
      EXPECT_EQ(data[static_cast<std::size_t>(i)].back(), static_cast<float>(3 + 3 * i));
    }
  });
}

TEST(Work, DoneMakesProgressWithoutBlocking) {
  fork_world(2, [](World& world) {
    std::vector<double> data(50'000, world.rank() + 1);
    Work work = world.all_reduce(data);
    while (!work.done()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(data[49'999], 3);
    work.wait();  // again is allowed
  });
}

// Messages come in an order that the receiver does not know; where none comes, it is told so.
TEST(Work, MessagesAreWaitedForTogether) {
  fork_world(3, [](World& world) {
    std::vector<std::int64_t> data = {world.rank(), 0, 0};
    if (world.rank() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 1 ? 300 : 0));
      world.send(data, 0).wait();
      world.barrier().wait();
      return;
    }
    std::vector<std::vector<std::int64_t>> into(2, std::vector<std::int64_t>(3, -1));
    std::vector<Work> works;
    works.push_back(world.recv(into[0], 1));
    works.push_back(world.recv(into[1], 2));
    std::vector<std::size_t> order;
    while (order.size() < 2) {
      const auto found = world.wait_any(works, Milliseconds(20));
      if (found) {
        works[*found].wait();
        order.push_back(static_cast<std::size_t>(into[*found][0]));
        if (*found == 1) {
          works.pop_back();
        }
        continue;
      }
      EXPECT_EQ(order.size(), 1U);  // the slow one is still to come
    }
    EXPECT_EQ(order, (std::vector<std::size_t>{2, 1}));
    world.barrier().wait();
  });
}

TEST(Work, AServingThreadHearsOfALoss) {
  fork_world(2, [](World& world) {
    if (world.rank() == 1) {
      _exit(0);  // without leaving
    }
    std::vector<float> into(3);
    std::vector<Work> works;
    works.push_back(world.recv(into, 1));
    const auto serve = [&] {
      while (!world.wait_any(works, Milliseconds(50))) {
      }
    };
    EXPECT_NE(message_of<CommError>(serve).find("rank 1"), std::string::npos);
    works[0].forget();
  });
}

TEST(Work, AHelperThreadMakesProgressAlone) {
  spawn_world(
      2,
      [](World& world) {
        std::vector<float> first(100'000, 1);
        std::vector<float> second(10, 1);
        Work one = world.all_reduce(first);
        Work two = world.all_reduce(second);
        if (world.rank() == 0) {
          // Far from the communicator: without the helper, rank 1 would wait in vain.
          std::this_thread::sleep_for(std::chrono::seconds(2));
        }
        one.wait(Milliseconds(1500));
        two.wait(Milliseconds(1500));
        EXPECT_EQ(first[99'999], 2);
        EXPECT_EQ(second[9], 2);
      },
      [](InitOptions& options) { options.progress_thread = true; });
}

TEST(Work, DroppedUnfinishedStillHappens) {
  fork_world(2, [](World& world) {
    const SharedBuffer buffer = world.allocate(400'000);
    const Span data = buffer.span(Dtype::kFloat32, 100'000);
    std::fill_n(reinterpret_cast<float*>(data.bytes()), 100'000, 1.0F);
    static_cast<void>(world.all_reduce(data));
    world.barrier().wait();
    EXPECT_EQ(reinterpret_cast<float*>(data.bytes())[99'999], 2);
  });
}

TEST(Work, NamesTheMissingRankAtTheDeadline) {
  fork_world(3, [](World& world) {
    if (world.rank() == 2) {  // alive, but elsewhere
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      EXPECT_THROW(world.barrier().wait(), CommError);
      return;
    }
    std::vector<float> data(10);
    // The other one may have found it before this one has called.
    const std::string message =
        message_of<CommError>([&] { world.all_reduce(data).wait(Milliseconds(500)); });
    EXPECT_NE(message.find("rank 2 (pid"), std::string::npos) << message;
    EXPECT_NE(message.find("all_reduce(sum, float32 x 10)"), std::string::npos) << message;
    // The communicator is finished, and says why.
    EXPECT_NE(message_of<CommError>([&] { world.barrier().wait(); }).find("rank 2"),
              std::string::npos);
  });
}

// Rank 0 holds messages for rank 1, which first wants one from rank 2, which first wants one from
// rank 0: no cycle, so it must go through, however large the messages are.
TEST(Work, MessagesToABusyRankDoNotHoldUpOthers) {
  fork_world(3, [](World& world) {
    std::vector<float> a(600'000, 1);
    std::vector<float> b(600'000, 2);
    if (world.rank() == 0) {
      Work to_one = world.send(a, 1);
      Work to_two = world.send(b, 2);
      to_one.wait();
      to_two.wait();
    } else if (world.rank() == 2) {
      world.recv(b, 0).wait();
      world.send(b, 1).wait();
    } else {
      world.recv(b, 2).wait();
      world.recv(a, 0).wait();
      EXPECT_EQ(a.back(), 1);
    }
    EXPECT_EQ(b.back(), 2);
  });
}

TEST(Work, DoneNoticesADeadPeerToo) {
  const std::string job = testing::unique_job();
  const auto join = [&](int rank) { return init(testing::options_for(job, rank, 2)); };
  const pid_t victim = testing::fork_rank(1, [&](int rank) {
    const auto world = join(rank);
    raise(SIGKILL);
  });
  const auto world = join(0);
  std::vector<float> data(10);
  Work work = world->all_reduce(data);
  const std::string message = message_of<CommError>([&] {
    while (!work.done()) {
    }
  });
  EXPECT_NE(message.find(detail::concat("rank 1 (pid ", victim)), std::string::npos) << message;
  testing::wait_for(victim);
}

// A death ends every wait, also one for somebody else.
TEST(Work, ADeadRankEndsWaitsForOthersToo) {
  const std::string job = testing::unique_job();
  const auto join = [&](int rank) { return init(testing::options_for(job, rank, 3)); };
  const pid_t victim = testing::fork_rank(2, [&](int rank) {
    const auto world = join(rank);
    raise(SIGKILL);
  });
  const pid_t slow = testing::fork_rank(1, [&](int rank) {
    const auto world = join(rank);
    pause();  // until it is killed
  });
  const auto world = join(0);
  std::vector<float> data(10);
  const std::string message = message_of<CommError>([&] { world->recv(data, 1).wait(); });
  EXPECT_NE(message.find(detail::concat("rank 2 (pid ", victim)), std::string::npos) << message;
  kill(slow, SIGKILL);
  testing::wait_for(slow);
  testing::wait_for(victim);
}

TEST(Work, AMessageFromARankThatLeftIsNotWaitedFor) {
  fork_world(3, [](World& world) {
    std::vector<float> data(10);
    if (world.rank() == 0) {
      std::vector<float> other(10);
      Work from_slow;
      // Rank 1 may have missed rank 2 before this one has called.
      const std::string message = message_of<CommError>([&] {
        from_slow = world.recv(data, 1);  // in the way, but not what is waited for
        world.recv(other, 2).wait();
      });
      EXPECT_NE(message.find("rank 2 (pid"), std::string::npos) << message;
      EXPECT_NE(message.find("left the world"), std::string::npos) << message;
    } else if (world.rank() == 1) {
      EXPECT_THROW(world.barrier().wait(), CommError);
    }
  });
}

TEST(Work, AForkedChildDoesNotSpeakForItsRank) {
  fork_world(2, [](World& world) {
    for (int i = 0; i < 3; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        exit(0);  // runs the handlers and destructors that the parent has set up
      }
      testing::wait_for(child);
      world.barrier().wait();
    }
  });
}

// A rank that ends at once resets its connections, with data on its way to it: the others say so,
// and live.
TEST(Work, ARankThatIsGoneInTheMiddleOfItsDataIsNamed) {
  for (const std::size_t numel : {100'000, 400'000, 1'500'000}) {
    for (int later = 0; later < 4; ++later) {
      testing::fork_world(3, [&](World& world) {
        std::vector<float> data(numel, 1);
        if (world.rank() == 2) {
          world.all_reduce(data).wait();
          Work work = world.all_reduce(data);
          work.done();
          _exit(0);
        }
        const std::string message = message_of<CommError>([&] {
          world.all_reduce(data).wait();  // whoever goes may take what it last said with it
          std::this_thread::sleep_for(std::chrono::microseconds(500 * later));
          world.all_reduce(data).wait();  // it may have given all that this one needs
          world.all_reduce(data).wait();
        });
        EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
      });
    }
  }
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// What a rank sends before the other is ready for it waits with the sender.
TEST(Work, AMessageThatNobodyReceivesYetTakesLittleMemory) {
  fork_world(2, [](World& world) {
    constexpr std::size_t kNumel = 48 << 20;  // 192 MiB
    std::vector<float> data(kNumel, world.rank() == 0 ? 7.0F : 0.0F);
    Work sent;
    if (world.rank() == 0) {
      sent = world.send(data, 1);
    }
    const std::size_t before = resident_bytes();
    ASSERT_GE(before, kNumel * sizeof(float)) << "the system does not say what is resident";
    for (int i = 0; i < 200; ++i) {
      world.barrier().wait();  // data may come meanwhile
    }
    if (world.rank() == 1) {
      EXPECT_LT(resident_bytes(), before + (64 << 20));
      world.recv(data, 0).wait();
      EXPECT_TRUE(std::all_of(data.begin(), data.end(), [](float value) { return value == 7; }));
    } else {
      sent.wait();
    }
  });
}

constexpr std::size_t kBeyondAnyWindow = 9 << 20;  // floats: 36 MiB

void expect_all(const std::vector<float>& values, float expected, const char* what) {
  EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float value) {
    return value == expected;
  })) << what;
}

// A few seconds instead of the minute that ranks have elsewhere: a hang is what is tested for.
void hurry(InitOptions& options) {
  options.timeout = std::chrono::seconds(15);
}

// Messages that are received last do not hold up what is called meanwhile, whichever way they go.
TEST(Work, AMessageThatNobodyReceivesYetHoldsUpNothing) {
  for (const bool both_ways : {false, true}) {
    fork_world(
        2,
        [&](World& world) {
          const int other = 1 - world.rank();
          for (const int sender : {0, 1}) {
            const bool sends = both_ways || world.rank() == sender;
            const bool receives = both_ways || world.rank() != sender;
            const std::vector<float> message(kBeyondAnyWindow, static_cast<float>(world.rank()));
            Work sent;
            if (sends) {
              sent = world.send(message, other);
            }
            // Each goes another way: long data, long results, one to all, and short words.
            std::vector<float> sum(1 << 20, 1.0F);
            world.all_reduce(sum).wait();
            expect_all(sum, 2, "all_reduce");
            std::vector<float> news(6 << 20, world.rank() == sender ? 5.0F : 0.0F);
            world.broadcast(news, sender).wait();
            expect_all(news, 5, "broadcast");
            std::vector<float> whole(2 << 20);
            world.all_gather(sum, whole).wait();
            expect_all(whole, 2, "all_gather");
            world.barrier().wait();
            if (receives) {
              std::vector<float> found(kBeyondAnyWindow);
              world.recv(found, other).wait();
              expect_all(found, static_cast<float>(other), "recv");
            }
            sent.wait();
          }
        },
        hurry);
  }
}

// Several of them, to one rank and to another, with different tags.
TEST(Work, MessagesThatNobodyReceivesYetHoldUpNothing) {
  fork_world(
      3,
      [](World& world) {
        const std::vector<float> first(kBeyondAnyWindow / 2, 1.0F);
        const std::vector<float> second(kBeyondAnyWindow / 2, 2.0F);
        std::vector<Work> sent;
        if (world.rank() == 0) {
          for (const int to : {1, 2}) {
            sent.push_back(world.send(first, to, /*tag=*/7));
            sent.push_back(world.send(second, to, /*tag=*/4));
          }
        }
        std::vector<float> sum(3 << 20, 1.0F);
        world.all_reduce(sum).wait();
        expect_all(sum, 3, "all_reduce");
        // What the others send each other, and to rank 0, passes rank 0's messages as well.
        std::vector<float> found(kBeyondAnyWindow / 2);
        if (world.rank() == 2) {
          world.send(sum, 1).wait();
          world.send(sum, 0).wait();
        } else {
          world.recv(sum, 2).wait();
        }
        world.all_reduce(sum).wait();
        expect_all(sum, 9, "all_reduce after messages");
        if (world.rank() != 0) {
          world.recv(found, 0, /*tag=*/7).wait();
          expect_all(found, 1, "the first");
          world.recv(found, 0, /*tag=*/4).wait();
          expect_all(found, 2, "the second");
        }
        for (Work& work : sent) {
          work.wait();
        }
      },
      hurry);
}

// Some ranks have already moved what was called before an allocation, others not: it has its turn
// everywhere.
TEST(Work, AnAllocationHasItsTurn) {
  for (const bool helped : {false, true}) {
    fork_world(
        4,
        [](World& world) {
          for (int round = 0; round < 5; ++round) {
            std::vector<float> sum(1 << 18, 1.0F);
            std::vector<float> next(1000, 2.0F);
            Work one = world.all_reduce(sum);
            Work two = world.all_reduce(next);
            if ((world.local_rank() + round) % 2 == 0) {
              for (int i = 0; i < 100 && !one.done(); ++i) {
              }
            }
            const SharedBuffer buffer = world.allocate(1 << 20);
            EXPECT_EQ(buffer.data()[0], std::byte{0});
            two.wait();
            one.wait();
            expect_all(sum, 4, "before the allocation");
            expect_all(next, 8, "before the allocation");
          }
        },
        [&](InitOptions& options) {
          hurry(options);
          options.progress_thread = helped;
        });
  }
}

TEST(Work, AbortEndsEveryRank) {
  fork_world(3, [](World& world) {
    if (world.rank() == 1) {
      world.abort("the loss is not a number");
      return;
    }
    const std::string message = message_of<CommError>([&] { world.barrier().wait(); });
    EXPECT_NE(message.find("the loss is not a number"), std::string::npos) << message;
    EXPECT_NE(message.find("found by rank 1"), std::string::npos) << message;
  });
}

// A list of all that is wrong with a file, say.
TEST(Work, ALongReasonReachesEveryRankWholeOrMarkedAsCut) {
  std::string reason;
  for (int i = 0; i < 400; ++i) {
    reason += std::to_string(i) + " is wrong;";
  }
  fork_world(3, [&](World& world) {
    if (world.rank() == 1) {
      world.abort(reason);
      return;
    }
    const std::string message = message_of<CommError>([&] { world.barrier().wait(); });
    const bool marked = message.find("... (cut; it has ") != std::string::npos;
    // Control messages between machines are short, so that they arrive although their sender
    // leaves.
    const bool may_be_cut = std::getenv("TRIREME_TEST_LAYOUT") != nullptr;
    EXPECT_TRUE(message.find(reason) != std::string::npos || (may_be_cut && marked)) << message;
  });
  // One that is longer than any memory set aside for it says that it is cut, between characters.
  std::string endless;
  for (int i = 0; i < 10'000; ++i) {
    endless += "\xc3\xa9";
  }
  fork_world(2, [&](World& world) {
    if (world.rank() == 1) {
      world.abort(endless);
      return;
    }
    const std::string message = message_of<CommError>([&] { world.barrier().wait(); });
    EXPECT_NE(message.find("\xc3\xa9... (cut"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace trireme
