#include "comm/operation_queue.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>

namespace trireme::detail {
namespace {

// Rests like a network where nothing comes, and counts how often.
class IdleHost final : public QueueHost {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool pump() override { return false; }
  void rest(Milliseconds) override {
    ++rests;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  std::optional<CommError> loss(const std::vector<int>&) override { return std::nullopt; }
  std::string name(int) const override { return "rank 0"; }
  std::string last_operations() const override { return ""; }
  void spread(const CommError&) override {}

  std::atomic<int> rests{0};
};

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

// What one thread waits for may need what another one issues: that one comes in between two rests,
// not when the first happens to be late.
TEST(OperationQueue, LetsAnotherThreadIssueWhileOneWaits) {
  share_one_processor();
  IdleHost host;
  QueueOptions options;
  options.timeout = std::chrono::seconds(60);
  options.oversubscribed = true;
  options.quiet = true;
  const auto queue = std::make_shared<OperationQueue>(host, options);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> issued{false};
    const auto start = [&](const Operation&, std::uint32_t) { return wait_until(issued); };
    Work first = queue->issue({.kind = OpKind::kBarrier}, start);
    std::thread waiter([&] { first.wait(); });
    const int before = host.rests;
    while (host.rests < before + 5) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    const int at_call = host.rests;
    Work second = queue->issue({.kind = OpKind::kBarrier}, start);
    const int at_return = host.rests;
    issued = true;
    second.wait();
    waiter.join();
    EXPECT_LE(at_return - at_call, 10)
        << "rests of the waiting thread while another came, round " << round;
  }
  EXPECT_TRUE(queue->close());
}

}  // namespace
}  // namespace trireme::detail
