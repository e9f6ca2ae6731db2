// The faults of a drill in what ranks send: against messages that a test looks at.

#include "comm/net/drilled_transport.h"

#include <thread>

#include <gtest/gtest.h>

#include "comm/algo/channel.h"
#include "support/memory_transport.h"

namespace trireme::detail {
namespace {

using trireme::testing::MemoryTransport;
using trireme::testing::Post;

constexpr auto kDataTag = static_cast<std::uint32_t>(Channel::Stream::kData);
constexpr auto kControlTag = static_cast<std::uint32_t>(Channel::Stream::kControl);

class DrilledTransportTest : public ::testing::Test {
 protected:
  // Of rank 0; rank 1 is on another machine, or on the same.
  std::shared_ptr<Transport> ours(int other_machine = 1) {
    return drill_transport(std::make_shared<MemoryTransport>(0, post_),
                           {0, other_machine},
                           7,
                           {.fault =
                                [this](int peer) {
                                  peers_.push_back(peer);
                                  return std::exchange(fault_, std::nullopt);
                                },
                            .flip =
                                [this](const DrillPlan::Sent& sent, std::uint64_t bits) {
                                  sent_.push_back(sent);
                                  bits_.push_back(bits);
                                  return std::exchange(bit_, std::nullopt);
                                }});
  }
  static Request send(Transport& transport, const std::string& text, std::uint32_t tag = kDataTag) {
    return transport.send(1,
                          tag,
                          reinterpret_cast<const std::byte*>(text.data()),
                          text.size(),
                          Transport::Length::kExact);
  }
  std::vector<std::string> arrived(std::uint32_t tag = kDataTag) {
    std::vector<std::string> texts;
    for (const auto& bytes : (*post_)[{0, tag}]) {
      texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return texts;
  }

  std::shared_ptr<Post> post_ = std::make_shared<Post>();
  std::optional<LinkFault> fault_;
  std::optional<std::uint64_t> bit_;
  std::vector<int> peers_;
  std::vector<DrillPlan::Sent> sent_;
  std::vector<std::uint64_t> bits_;
};

TEST_F(DrilledTransportTest, FlipsOneBitAndLeavesTheSendersMemory) {
  const auto transport = ours();
  const std::string text = "abcd";
  bit_ = 8 * 2 + 1;
  Request request = send(*transport, text);
  EXPECT_TRUE(transport->finished(request));
  Request next = send(*transport, text);
  EXPECT_TRUE(transport->finished(next));
  EXPECT_EQ(arrived(), (std::vector<std::string>{std::string("ab") + char('c' ^ 2) + "d", text}));
  EXPECT_EQ(text, "abcd");
  ASSERT_EQ(sent_.size(), 2U);
  EXPECT_EQ(bits_[0], 32U);
  EXPECT_EQ(sent_[1].number, 1U);
  EXPECT_EQ(sent_[1].epoch, 7);
  EXPECT_EQ(sent_[1].to, 1);
  EXPECT_EQ(peers_, (std::vector<int>{1, 1}));
}

TEST_F(DrilledTransportTest, HoldsAMessageBackAndAllThatComeAfterIt) {
  const auto transport = ours();
  const std::string first = "first";
  const std::string second = "second";
  fault_ = LinkFault{DrillKind::kDelay, 0.1};
  const auto begin = Clock::now();
  Request one = send(*transport, first);
  Request two = send(*transport, second);
  EXPECT_TRUE(arrived().empty());
  EXPECT_FALSE(transport->finished(one));
  // What is said as a world ends is not held back.
  send(*transport, first, kControlTag);
  EXPECT_EQ(arrived(kControlTag).size(), 1U);
  while (!transport->finished(two)) {
    transport->progress();
    transport->rest(Milliseconds(1000));
  }
  EXPECT_GE(Clock::now() - begin, Milliseconds(100));
  EXPECT_TRUE(transport->finished(one));
  EXPECT_EQ(arrived(), (std::vector<std::string>{first, second}));
}

TEST_F(DrilledTransportTest, SendsWhatIsHeldBeforeItEnds) {
  const std::string text = "held";
  fault_ = LinkFault{DrillKind::kDelay, 100};
  auto transport = ours();
  Request request = send(*transport, text);
  transport.reset();
  EXPECT_EQ(arrived(), std::vector<std::string>{text});
  // One that was abandoned sends nothing of it.
  transport = ours();
  fault_ = LinkFault{DrillKind::kDelay, 100};
  request = send(*transport, text);
  transport->abandon();
  transport.reset();
  EXPECT_EQ(arrived().size(), 1U);
}

TEST_F(DrilledTransportTest, LeavesTheRanksOfAMachineAlone) {
  const auto transport = ours(0);
  const std::string text = "text";
  fault_ = LinkFault{DrillKind::kDelay, 100};
  bit_ = 0;
  Request request = send(*transport, text);
  EXPECT_TRUE(transport->finished(request));
  EXPECT_EQ(arrived(), std::vector<std::string>{text});
  EXPECT_TRUE(peers_.empty() && sent_.empty());
}

}  // namespace
}  // namespace trireme::detail
