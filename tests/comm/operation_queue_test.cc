#include "comm/queue/operation_queue.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/ranks.h"

namespace trireme::detail {
namespace {

class Until final : public Condition {
 public:
  explicit Until(const std::atomic<bool>& set) : set_(set) {}
  bool ready() override { return set_; }
  std::vector<int> missing() override { return {}; }

 private:
  const std::atomic<bool>& set_;
};

Steps wait_until(const std::atomic<bool>& set) {
  co_await Until(set);
}

// What a backend of the tests sees and does.
struct Script {
  std::atomic<bool> done{false};  // what every operation waits for
  std::atomic<int> rests{0};
  std::atomic<std::thread::id> rested{};  // who rested last
  std::atomic<bool> lost{false};          // rank 1 is
  std::atomic<bool> left{false};          // rank 1 has, in good order
  std::vector<std::string> settled;
  std::atomic<int> spread{0};
  std::atomic<int> closed{0};
  std::function<void()> at_close;
  bool closes_at_exit = false;
  std::atomic<bool> destroyed{false};
  std::vector<std::uint64_t> started;
};

// One of two ranks. Rests like a network where nothing comes, and counts how often.
class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(Script& script) : script_(script) {}
  ~ScriptedBackend() override { script_.destroyed = true; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name(int rank) const override { return concat("rank ", rank); }
  void check_memory(const Operation& /*operation*/) const override {}
  Steps start(const Call& call) override {
    script_.started.push_back(call.number);
    return wait_until(script_.done);
  }
  std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest&) override { return nullptr; }
  void rest(std::uint32_t, Milliseconds) override {
    script_.rested = std::this_thread::get_id();
    ++script_.rests;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  bool was_told() const override { return false; }
  CommError told() const override { return {CommError::Reason::kAborted, -1, ""}; }
  std::optional<CommError> loss(const std::vector<int>&) override {
    if (script_.lost) {
      return lost_rank(CommError::Reason::kPeerDied, 1, name(1));
    }
    if (script_.left) {
      return lost_rank(CommError::Reason::kPeerLeft, 1, name(1));
    }
    return std::nullopt;
  }
  bool settle(const CommError& failure) override {
    script_.settled.emplace_back(failure.what());
    return true;
  }
  std::string last_operations() const override { return ""; }
  void spread(const CommError&) override { ++script_.spread; }
  void close(bool) override {
    ++script_.closed;
    if (script_.at_close) {
      script_.at_close();
    }
  }
  bool closes_at_exit() const override { return script_.closes_at_exit; }

 private:
  Script& script_;
};

std::shared_ptr<OperationQueue> queue_of(Script& script, const QueueOptions& options) {
  auto queue = std::make_shared<OperationQueue>(std::make_unique<ScriptedBackend>(script), options);
  queue->open();
  return queue;
}

QueueOptions test_options() {
  QueueOptions options;
  options.timeout = std::chrono::seconds(60);
  options.spins = 0;
  options.quiet = true;
  return options;
}

// As busy machines and batch systems schedule: a thread that wakes another keeps its processor.
// Where that cannot be had (an emulator), the test finds less.
void share_one_processor() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof(one), &one);
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
}

// While one thread waits in a queue, an operation that nobody waits for, in another one of the same
// world, goes on: a peer may be waiting for that.
TEST(OperationQueue, AWaitInOneAdvancesTheOthersOfTheFamily) {
  Script first_script;
  Script second_script;
  const QueueOptions shared = test_options();
  QueueOptions own_turns = shared;
  own_turns.turns = std::make_shared<Turns>();
  for (const QueueOptions& options : {shared, own_turns}) {
    first_script.done = false;
    second_script.done = false;
    const auto first = queue_of(first_script, shared);
    const auto second = queue_of(second_script, options);
    Work waited = first->issue({.kind = OpKind::kBarrier});
    Work forgotten = second->issue({.kind = OpKind::kBarrier});
    std::thread waiter([&] { waited.wait(); });
    second_script.done = true;
    while (second->completed() == 0) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    first_script.done = true;
    waiter.join();
    EXPECT_TRUE(forgotten.done());
    first->close();
    second->close();
  }
}

// And one of another world does not.
TEST(OperationQueue, AWaitLeavesOtherWorldsAlone) {
  Script first_script;
  Script second_script;
  const auto first = queue_of(first_script, test_options());
  const auto second = queue_of(second_script, test_options());
  Work waited = first->issue({.kind = OpKind::kBarrier});
  Work other = second->issue({.kind = OpKind::kBarrier});
  second_script.done = true;
  std::thread waiter([&] { waited.wait(); });
  while (first_script.rests < 20) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
  EXPECT_EQ(second->completed(), 0U);
  first_script.done = true;
  waiter.join();
  EXPECT_TRUE(other.done());
  first->close();
  second->close();
}

// Each numbers its collectives by itself; messages have no number.
TEST(OperationQueue, HasAnOrderOfItsOwn) {
  Script first_script;
  Script second_script;
  const QueueOptions options = test_options();
  const auto first = queue_of(first_script, options);
  const auto second = queue_of(second_script, options);
  std::vector<Work> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(first->issue({.kind = OpKind::kBarrier}));
    all.push_back(first->issue({.kind = OpKind::kSend, .peer = 1}));
  }
  all.push_back(second->issue({.kind = OpKind::kBarrier}));
  EXPECT_EQ(first_script.started, (std::vector<std::uint64_t>{1, 0, 2, 0, 3, 0}));
  EXPECT_EQ(second_script.started, (std::vector<std::uint64_t>{1}));
  first_script.done = true;
  second_script.done = true;
  for (Work& work : all) {
    work.wait();
  }
  EXPECT_EQ(first->completed(), 3U);
  first->close();
  second->close();
}

// What ends the communicator that a group was made from ends the group: the lost rank has another
// number there, or none.
TEST(OperationQueue, EndsWithItsParent) {
  const std::vector<std::pair<std::vector<int>, int>> cases = {{{1, 0}, 0}, {{0, 2}, -1}};
  for (const auto& [ranks, expected] : cases) {
    Script parent_script;
    Script script;
    const QueueOptions options = test_options();
    const auto parent = queue_of(parent_script, options);
    QueueOptions own_turns = options;
    own_turns.turns = std::make_shared<Turns>();
    const auto group = queue_of(script, own_turns);
    group->end_with(parent, ranks);
    Work work = group->issue({.kind = OpKind::kBarrier});
    parent_script.lost = true;
    try {
      work.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied) << error.what();
      EXPECT_EQ(error.peer(), expected) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1 ended without leaving"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(parent_script.spread, 1) << "the parent has failed, and told its ranks";
    group->close();
    parent->close();
  }
}

// The parent's failure is the reason, whether the parent is still there or not, and although the
// one that is waited for has left meanwhile, for that reason.
TEST(OperationQueue, PrefersTheReasonOfItsParentToAGoodbye) {
  enum class Parent { kOpen, kClosed, kGone };
  for (const Parent state : {Parent::kOpen, Parent::kClosed, Parent::kGone}) {
    Script parent_script;
    Script script;
    auto parent = queue_of(parent_script, test_options());
    const auto group = queue_of(script, test_options());
    group->end_with(parent, {0, 1});
    Work work = group->issue({.kind = OpKind::kBarrier});
    parent->end({CommError::Reason::kAborted, 1, "the reason of this test"});
    script.left = true;
    if (state != Parent::kOpen) {
      parent->close();
    }
    if (state == Parent::kGone) {
      parent.reset();
    }
    try {
      work.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kAborted) << error.what();
      EXPECT_NE(std::string(error.what()).find("the reason of this test"), std::string::npos)
          << error.what();
    }
    group->close();
    if (parent) {
      parent->close();
    }
  }
}

// A rank whose world has failed takes its groups down with it: whoever waits there for it is told
// the reason before it leaves.
TEST(OperationQueue, TellsTheReasonOfItsParentBeforeItLeaves) {
  for (const bool parent_first : {false, true}) {
    Script parent_script;
    Script script;
    const auto parent = queue_of(parent_script, test_options());
    const auto group = queue_of(script, test_options());
    group->end_with(parent, {0, 1});
    parent->end({CommError::Reason::kAborted, 1, "the reason of this test"});
    if (parent_first) {
      parent->close();
    }
    group->close();
    ASSERT_EQ(script.settled.size(), 1U);
    EXPECT_NE(script.settled.front().find("the reason of this test"), std::string::npos)
        << script.settled.front();
    parent->close();
  }
  // One that has not failed has no reason.
  Script parent_script;
  Script script;
  const auto parent = queue_of(parent_script, test_options());
  const auto group = queue_of(script, test_options());
  group->end_with(parent, {0, 1});
  parent->close();
  group->close();
  EXPECT_TRUE(script.settled.empty());
}

TEST(OperationQueue, ClosesItsBackendOnce) {
  Script script;
  const auto queue = queue_of(script, test_options());
  queue->close();
  queue->close();
  EXPECT_EQ(script.closed, 1);
}

// exit() closes what is still open, and keeps it until that is done: another thread may let go of
// it meanwhile.
TEST(OperationQueue, IsClosedAtExitAndKeptUntilThen) {
  const pid_t child = fork();
  if (child == 0) {
    auto& script = *new Script;  // exit() destroys it in no case
    auto& queue = *new std::shared_ptr<OperationQueue>;
    script.closes_at_exit = true;
    script.at_close = [&] {
      std::thread([&] { queue.reset(); }).join();
      _exit(script.destroyed ? 1 : 42);
    };
    queue = queue_of(script, test_options());
    std::exit(0);  // NOLINT(concurrency-mt-unsafe)
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

// The helper advances what nobody waits for, and does not get in the way of those who wait.
TEST(OperationQueue, TheHelperLeavesWaitingToThoseWhoWait) {
  Script script;
  QueueOptions options = test_options();
  options.helper_thread = true;
  const auto queue = queue_of(script, options);
  const auto rest_a_while = [&] {
    for (const int before = script.rests; script.rests < before + 20;) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
  };
  Work work = queue->issue({.kind = OpKind::kBarrier});
  rest_a_while();
  const std::thread::id helper = script.rested;
  EXPECT_NE(helper, std::this_thread::get_id());
  std::thread waiter([&] { work.wait(); });
  while (script.rested != waiter.get_id()) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
  for (int look = 0; look < 20; ++look) {
    rest_a_while();
    EXPECT_EQ(script.rested.load(), waiter.get_id());
  }
  script.done = true;
  waiter.join();
  // And takes over again.
  script.done = false;
  work = queue->issue({.kind = OpKind::kBarrier});
  rest_a_while();
  EXPECT_EQ(script.rested.load(), helper);
  script.done = true;
  while (queue->completed() < 2) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
  EXPECT_TRUE(work.done());
  queue->close();
}

// What one thread waits for may need what another one issues: that one comes in between two rests,
// not when the first happens to be late.
TEST(OperationQueue, LetsAnotherThreadIssueWhileOneWaits) {
  share_one_processor();
  Script script;
  const auto queue = queue_of(script, test_options());
  for (int round = 0; round < 20; ++round) {
    script.done = false;
    Work first = queue->issue({.kind = OpKind::kBarrier});
    std::thread waiter([&] { first.wait(); });
    const int before = script.rests;
    while (script.rests < before + 5) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    const int at_call = script.rests;
    Work second = queue->issue({.kind = OpKind::kBarrier});
    const int at_return = script.rests;
    script.done = true;
    second.wait();
    waiter.join();
    EXPECT_LE(at_return - at_call, 10)
        << "rests of the waiting thread while another came, round " << round;
  }
  queue->close();
}

}  // namespace
}  // namespace trireme::detail
