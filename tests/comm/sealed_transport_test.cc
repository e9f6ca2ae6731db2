// What ranks tell each other over a network is sealed: against seals that are made by hand.

#include "comm/net/sealed_transport.h"

#include <functional>

#include <gtest/gtest.h>

#include "comm/net/net_backend.h"
#include "comm/net/network.h"
#include "support/handshake_peer.h"
#include "support/memory_transport.h"
#include "support/processes.h"

namespace trireme::detail {
namespace {

using trireme::testing::hmac_by_hand;
using trireme::testing::MemoryTransport;
using trireme::testing::number;
using trireme::testing::Post;
using trireme::testing::text;

const std::string kKey(32, 'k');

constexpr std::uint32_t tag_of(Channel::Stream stream, std::uint32_t channel = 0) {
  return channel * Channel::kStreams + static_cast<std::uint32_t>(stream);
}
constexpr std::uint32_t kControlTag = tag_of(Channel::Stream::kControl);
constexpr std::uint32_t kCallTag = tag_of(Channel::Stream::kCall);
constexpr std::uint32_t kDataTag = tag_of(Channel::Stream::kData);

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Route {
  int from = 1;
  int to = 0;
  std::uint32_t tag = kControlTag;
  std::uint64_t count = 0;
  std::string key = kKey;
};

// The tag, the length, the message; authenticated as they are, or encrypted.
std::string seal_by_hand(const Route& route, const std::string& message, bool encrypt = false) {
  EXPECT_GE(sodium_init(), 0);
  const std::string key = hmac_by_hand(route.key, number(route.from) + number(route.to));
  unsigned char nonce[12] = {};
  std::memcpy(nonce, &route.tag, 4);
  std::memcpy(nonce + 4, &route.count, 8);
  const std::string length = number(static_cast<std::int64_t>(message.size()));
  const std::string plain = encrypt ? message : "";
  const std::string said = encrypt ? length : length + message;
  std::string sealed(plain.size() + 16, '\0');
  crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(sealed.data()),
                                            nullptr,
                                            reinterpret_cast<const unsigned char*>(plain.data()),
                                            plain.size(),
                                            reinterpret_cast<const unsigned char*>(said.data()),
                                            said.size(),
                                            nullptr,
                                            nonce,
                                            reinterpret_cast<const unsigned char*>(key.data()));
  const std::string tag = sealed.substr(plain.size());
  return tag + length + (encrypt ? sealed.substr(0, plain.size()) : message);
}

class SealedTransportTest : public ::testing::Test {
 protected:
  std::shared_ptr<Transport> ours(bool encrypt = false, bool checks_all = false) {
    return seal_transport(std::make_shared<MemoryTransport>(0, post_), {kKey, encrypt, checks_all});
  }
  std::deque<std::vector<std::byte>>& box(int from, std::uint32_t tag) {
    return (*post_)[{from, tag}];
  }
  // What `transport` makes of the next message of rank 1; nothing where it takes none.
  std::optional<std::string> received(Transport& transport, std::uint32_t tag, std::size_t most) {
    std::vector<std::byte> to(most, std::byte{'.'});
    Request request = transport.receive(1, tag, to.data(), most, Transport::Length::kUpTo);
    if (transport.finished(request)) {
      return text_of(to);
    }
    transport.drop(request);
    return std::nullopt;
  }

  std::shared_ptr<Post> post_ = std::make_shared<Post>();
};

TEST_F(SealedTransportTest, TakesWhatIsSealedByHandAndSealsTheSameWay) {
  const auto transport = ours();
  for (std::uint64_t count = 0; count < 3; ++count) {
    const std::string message(10 * count, static_cast<char>('a' + count));
    box(1, kControlTag).push_back(bytes_of(seal_by_hand({.count = count}, message)));
    const auto got = received(*transport, kControlTag, 40);
    ASSERT_TRUE(got);
    EXPECT_EQ(*got, message + std::string(40 - message.size(), '.'));
    const auto sent = bytes_of(message);
    transport->send(1, kControlTag, sent.data(), sent.size(), Transport::Length::kUpTo);
    EXPECT_EQ(text_of(box(0, kControlTag).back()),
              seal_by_hand({.from = 0, .to = 1, .count = count}, message));
  }
  EXPECT_FALSE(transport->lost(1));
}

// With checksums, what does not steer is sealed as well, and travels as it is.
TEST_F(SealedTransportTest, FindsAFlippedBitInDataWhereAllIsChecked) {
  const Route there{.from = 0, .to = 1, .tag = kDataTag};
  const auto sent = bytes_of("gradients");
  ours(false, true)->send(1, kDataTag, sent.data(), sent.size(), Transport::Length::kExact);
  EXPECT_EQ(text_of(box(0, kDataTag).back()), seal_by_hand(there, "gradients"));
  ours()->send(1, kDataTag, sent.data(), sent.size(), Transport::Length::kExact);
  EXPECT_EQ(text_of(box(0, kDataTag).back()), "gradients");

  const std::string good = seal_by_hand({.tag = kDataTag}, "gradients");
  box(1, kDataTag) = {bytes_of(good)};
  EXPECT_EQ(received(*ours(false, true), kDataTag, 9), "gradients");
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    box(1, kDataTag) = {bytes_of(flipped)};
    const auto transport = ours(false, true);
    EXPECT_FALSE(received(*transport, kDataTag, 9)) << bit;
    EXPECT_TRUE(transport->lost(1)) << bit;
  }
}

// One that is replayed, of another stream, of another pair, altered or longer than it was.
TEST_F(SealedTransportTest, TakesNothingElse) {
  const std::string good = seal_by_hand({.count = 1}, "a message");
  std::vector<std::string> wrong = {
      seal_by_hand({.count = 0}, "a message"),
      seal_by_hand({.count = 2}, "a message"),
      seal_by_hand({.tag = kCallTag, .count = 1}, "a message"),
      seal_by_hand({.tag = kControlTag + Channel::kStreams, .count = 1}, "a message"),
      seal_by_hand({.from = 0, .to = 1, .count = 1}, "a message"),
      "a message",
      std::string(kSealBytes, '\0'),
      good.substr(0, 16) + number(-1) + "a message",
      good.substr(0, 16) + number(8) + "a message",
  };
  for (std::size_t at = 0; at < good.size(); ++at) {
    wrong.push_back(good);
    wrong.back()[at] ^= 4;
  }
  for (const std::string& message : wrong) {
    const auto transport = ours();
    box(1, kControlTag) = {bytes_of(seal_by_hand({}, "the first"))};
    ASSERT_TRUE(received(*transport, kControlTag, 40));
    std::string padded = message;
    padded.resize(std::max(padded.size(), kSealBytes));
    box(1, kControlTag) = {bytes_of(padded)};
    EXPECT_FALSE(received(*transport, kControlTag, 40));
    ASSERT_TRUE(transport->lost(1));
    EXPECT_NE(transport->lost(1)->find("altered, forged, replayed or left out"), std::string::npos);
    EXPECT_FALSE(transport->lost(0));
  }
}

TEST_F(SealedTransportTest, DataGoesAsItIsUnlessItIsEncrypted) {
  const std::string data = "contributions of a rank";
  const auto bytes = bytes_of(data);
  ours()->send(1, kDataTag, bytes.data(), bytes.size(), Transport::Length::kExact);
  EXPECT_EQ(text_of(box(0, kDataTag).back()), data);
  const auto transport = ours(true);
  for (const std::uint32_t tag : {kDataTag, kControlTag}) {
    transport->send(1, tag, bytes.data(), bytes.size(), Transport::Length::kExact);
    EXPECT_EQ(text_of(box(0, tag).back()),
              seal_by_hand({.from = 0, .to = 1, .tag = tag}, data, true));
    EXPECT_EQ(text_of(box(0, tag).back()).find("contributions"), std::string::npos);
    box(1, tag) = {bytes_of(seal_by_hand({.tag = tag}, data, true))};
    EXPECT_EQ(received(*transport, tag, data.size()), data);
    box(1, tag) = {bytes_of(seal_by_hand({.tag = tag, .count = 0}, data, true))};
    EXPECT_FALSE(received(*transport, tag, data.size()));
  }
}

// Each duplicate has keys of its own, which are made from those of what it was made from.
TEST_F(SealedTransportTest, AMessageOfADuplicateIsForNoOther) {
  const auto transport = ours();
  const auto bytes = bytes_of("a message");
  const auto first = transport->duplicate({});
  const auto second = transport->duplicate({});
  const auto of_second = second->duplicate({});
  const auto key_of = [](const std::string& parent, std::int64_t which) {
    return hmac_by_hand(parent, text("duplicate") + number(which));
  };
  const std::pair<Transport*, std::string> all[] = {{transport.get(), kKey},
                                                    {first.get(), key_of(kKey, 1)},
                                                    {second.get(), key_of(kKey, 2)},
                                                    {of_second.get(), key_of(key_of(kKey, 2), 1)}};
  for (const auto& [one, key] : all) {
    one->send(1, kControlTag, bytes.data(), bytes.size(), Transport::Length::kUpTo);
    EXPECT_EQ(text_of(box(0, kControlTag).back()),
              seal_by_hand({.from = 0, .to = 1, .key = key}, "a message"));
    box(1, kControlTag) = {bytes_of(seal_by_hand({.key = key}, "a message"))};
    EXPECT_EQ(received(*one, kControlTag, bytes.size()), "a message");
  }
  // What the first has sealed as its second message, said to the second.
  box(1, kControlTag) = {bytes_of(seal_by_hand({.count = 1, .key = all[1].second}, "a message"))};
  EXPECT_FALSE(received(*second, kControlTag, bytes.size()));
  EXPECT_TRUE(transport->lost(1)) << "whoever meddles with one meddles with all";
}

// An engine that is abandoned may still write where messages were to go: nobody else gets that
// memory. (Of what is freed, the C library gives the last first.)
TEST_F(SealedTransportTest, WhatAnAbandonedEngineMayWriteToIsKept) {
  constexpr std::size_t kBytes = 1000;
  const auto inner = std::make_shared<MemoryTransport>(0, post_);
  auto transport = seal_transport(inner, {kKey, false});
  std::vector<std::byte> to(kBytes);
  const auto expect = [&] {
    return transport->receive(1, kControlTag, to.data(), kBytes, Transport::Length::kUpTo);
  };
  Request dropped = expect();
  const std::byte* const first = inner->last_box;
  transport->abandon();
  transport->drop(dropped);
  EXPECT_FALSE(dropped.pending());
  expect();  // and nobody waits for it
  const std::byte* const second = inner->last_box;
  EXPECT_NE(second, first);
  transport.reset();
  std::vector<std::unique_ptr<std::byte[]>> next;
  for (int i = 0; i < 4; ++i) {
    next.push_back(std::make_unique<std::byte[]>(kSealBytes + kBytes));
    EXPECT_TRUE(next.back().get() != first && next.back().get() != second);
  }
}

// A world of two whose messages somebody changes: it ends, and names the rank in whose name.
class TamperedWorld : public SealedTransportTest {
 protected:
  void expect_named(std::uint32_t tag, const std::function<void(Post&, std::uint32_t)>& tamper) {
    post_ = std::make_shared<Post>();
    std::vector<std::shared_ptr<OperationQueue>> queues;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<Member> members(2);
      members[1].rank = members[1].node = 1;
      members[1].pid = 4711;
      NetOptions net;
      net.network = std::make_shared<Network>(
          seal_transport(std::make_shared<MemoryTransport>(rank, post_), {kKey, false}), members);
      net.ranks = {0, 1};
      net.channel = std::make_shared<ChannelLease>(net.network, 0, 0);
      QueueOptions options;
      options.timeout = std::chrono::seconds(20);
      options.spins = 0;
      options.quiet = true;
      options.flight_folder = FlightFolder::named(records_.path());
      queues.push_back(make_net_queue(net, options));
      queues.back()->open();
    }
    const auto barrier = [&] {
      Work second = queues[1]->issue({.kind = OpKind::kBarrier});
      queues[0]->issue({.kind = OpKind::kBarrier}).wait();
      second.wait();
    };
    barrier();
    Work second = queues[1]->issue({.kind = OpKind::kBarrier});
    tamper(*post_, tag);
    try {
      for (;;) {  // one may still come through; rank 1 does not call the next
        queues[0]->issue({.kind = OpKind::kBarrier}).wait();
      }
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied) << error.what();
      EXPECT_EQ(error.peer(), 1) << error.what();
      const std::string what = error.what();
      EXPECT_NE(what.find("rank 1 (pid 4711"), std::string::npos) << what;
      EXPECT_NE(what.find("altered, forged, replayed"), std::string::npos) << what;
    }
    // That rank is told, so that it names the same.
    try {
      second.wait();
      queues[1]->issue({.kind = OpKind::kBarrier}).wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 1) << error.what();
      const std::string what = error.what();
      EXPECT_NE(what.find("altered, forged, replayed"), std::string::npos) << what;
      EXPECT_NE(what.find("(found by rank 0)"), std::string::npos) << what;
    }
  }

  trireme::testing::TemporaryFolder records_;
};

TEST_F(TamperedWorld, NamesTheRankWhoseAnnouncementWasAltered) {
  expect_named(kCallTag, [](Post& post, std::uint32_t tag) {
    post[{1, tag}].back()[kSealBytes + 4] ^= std::byte{1};  // what is called
  });
}

TEST_F(TamperedWorld, NamesTheRankWhoseAnnouncementWasReplayed) {
  std::vector<std::byte> earlier;
  // The last of them is sealed anew for its place, as only the two ranks can: by hand.
  expect_named(kCallTag, [&](Post& post, std::uint32_t tag) {
    const std::string said = text_of(post[{1, tag}].back()).substr(kSealBytes);
    post[{1, tag}].back() = bytes_of(seal_by_hand({.tag = tag, .count = 0}, said));
  });
}

TEST_F(TamperedWorld, NamesTheRankInWhoseNameAGoodbyeWasForged) {
  expect_named(kControlTag, [](Post& post, std::uint32_t tag) {
    std::string notice(1000, '\0');
    notice[0] = 1;  // it leaves
    post[{1, tag}].push_back(bytes_of(std::string(16, 'x') + number(1000) + notice));
  });
}

}  // namespace
}  // namespace trireme::detail
