// Operations begin before those in front of them have ended, and end in their order (Note [ahead]
// in comm/queue/operation_queue.cc).

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/queue/operation_queue.h"

namespace trireme::detail {
namespace {

// What each operation does, by its number from 1.
struct Plan {
  std::array<bool, 8> posts_all{};  // at its beginning
  std::array<bool, 8> may_end{};
  std::array<bool, 8> fails{};
  std::string story{};  // "+1" where operation 1 begins, "-1" where it is done with its work
};

class MayEnd final : public Condition {
 public:
  explicit MayEnd(const bool& set) : set_(set) {}
  bool ready() override { return set_; }
  std::vector<int> missing() override { return {}; }

 private:
  const bool& set_;
};

Steps run(Plan& plan, std::size_t number) {
  plan.story += " +" + std::to_string(number);
  if (plan.posts_all[number]) {
    co_await AllPosted();
  }
  if (plan.fails[number]) {
    throw CommError(CommError::Reason::kMismatch, 1, concat("operation ", number, " cannot be"));
  }
  co_await MayEnd(plan.may_end[number]);
  plan.story += " -" + std::to_string(number);
}

class PlannedBackend final : public Backend {
 public:
  explicit PlannedBackend(Plan& plan) : plan_(plan) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name(int rank) const override { return concat("rank ", rank); }
  void check_memory(const Operation& /*operation*/) const override {}
  Steps start(const Call& call) override { return run(plan_, call.number); }
  std::shared_ptr<SharedBuffer::Impl> make_memory(const MemoryRequest&) override { return nullptr; }
  void rest(std::uint32_t, Milliseconds) override {}
  bool was_told() const override { return false; }
  CommError told() const override { return {CommError::Reason::kAborted, -1, ""}; }
  std::optional<CommError> loss(const std::vector<int>&) override { return std::nullopt; }
  std::string last_operations() const override { return ""; }
  void spread(const CommError&) override {}
  void close(bool) override {}

 private:
  Plan& plan_;
};

class OperationsAhead : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_ =
        std::make_shared<OperationQueue>(std::make_unique<PlannedBackend>(plan_), QueueOptions{});
    queue_->open();
  }
  void TearDown() override {
    plan_.may_end.fill(true);
    queue_->close();
  }
  // An all_gather of elements [from, to) into the same place of the other half of the memory.
  void issue(std::int64_t from, std::int64_t to, OpKind kind = OpKind::kAllGather) {
    Operation op{.kind = kind};
    if (kind != OpKind::kBarrier) {
      op.input = ConstSpan(memory_.data() + from, to - from, Dtype::kFloat32);
      op.output = Span(memory_.data() + 100 + from, to - from, Dtype::kFloat32);
    }
    works_.push_back(queue_->issue(std::move(op)));
  }
  const std::string& look() {
    works_.back().done();
    return plan_.story;
  }

  Plan plan_;
  std::vector<float> memory_ = std::vector<float>(400);
  std::shared_ptr<OperationQueue> queue_;
  std::vector<Work> works_;
};

TEST_F(OperationsAhead, BeginWhenAllInFrontHavePostedTheirMessages) {
  plan_.posts_all = {false, true, false, true};
  issue(0, 10);
  issue(10, 20);
  issue(20, 30);
  EXPECT_EQ(look(), " +1 +2");  // 2 may post more, of which 3 must not get in front
  plan_.may_end[2] = true;
  EXPECT_EQ(look(), " +1 +2 -2 +3");
}

TEST_F(OperationsAhead, EndInTheirOrder) {
  plan_.posts_all.fill(true);
  issue(0, 10);
  issue(10, 20);
  plan_.may_end[2] = true;
  EXPECT_EQ(look(), " +1 +2 -2");
  EXPECT_FALSE(works_[1].done());
  EXPECT_EQ(queue_->completed(), 0U);
  plan_.may_end[1] = true;
  EXPECT_TRUE(works_[1].done());
  EXPECT_TRUE(works_[0].done());
  EXPECT_EQ(queue_->completed(), 2U);
}

TEST_F(OperationsAhead, WaitForThoseWhoseMemoryTheyUse) {
  plan_.posts_all.fill(true);
  issue(0, 10);
  issue(9, 20);  // writes the last element of what 1 writes
  EXPECT_EQ(look(), " +1");
  plan_.may_end[1] = true;
  EXPECT_EQ(look(), " +1 -1 +2");
}

TEST_F(OperationsAhead, WaitForWhatTheyRead) {
  plan_.posts_all.fill(true);
  issue(0, 10);
  issue(100, 110);  // reads what 1 writes; what it writes itself is elsewhere
  EXPECT_EQ(look(), " +1");
}

// Those in front of one that fails end as if it were not there.
TEST_F(OperationsAhead, FailInTheirOrder) {
  plan_.posts_all.fill(true);
  plan_.fails[2] = true;
  issue(0, 10);
  issue(10, 20);
  issue(20, 30);
  EXPECT_EQ(look(), " +1 +2");
  plan_.may_end[1] = true;
  EXPECT_NO_THROW(works_[0].wait());
  try {
    works_[2].wait();
    ADD_FAILURE() << "expected the failure of operation 2";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("operation 2 cannot be"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(queue_->completed(), 1U);
}

TEST_F(OperationsAhead, DoNotPassABarrier) {
  plan_.posts_all = {false, true, false, true};
  issue(0, 10);
  issue(0, 0, OpKind::kBarrier);
  issue(20, 30);
  EXPECT_EQ(look(), " +1");
  plan_.may_end[1] = true;
  EXPECT_EQ(look(), " +1 -1 +2");
  plan_.may_end[2] = true;
  EXPECT_EQ(look(), " +1 -1 +2 -2 +3");
}

}  // namespace
}  // namespace trireme::detail
