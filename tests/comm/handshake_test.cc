// The handshake, against one that is written by hand (support/handshake_peer.h), on either side.

#include "comm/rendezvous/handshake.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>
#include <signal.h>

#include "comm/rendezvous/net_meeting.h"
#include "comm/rendezvous/tcp_link.h"
#include "support/handshake_peer.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/version.h"

namespace trireme {
namespace {

using detail::concat;
using testing::fork_rank;
using testing::JoinerByHand;
using testing::MemberByHand;
using testing::message_of;
using testing::number;
using testing::Reading;
using testing::Spoken;
using testing::text;

constexpr char kTheToken[] = "the token of this test";
constexpr char kTheJob[] = "a job of this test";

void expect_parts(const std::string& whole, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(whole.find(part), std::string::npos) << "no \"" << part << "\" in: " << whole;
  }
}

FileDescriptor connected_to(int port) {
  const detail::MeetingPlace place{"127.0.0.1", port};
  FileDescriptor fd = detail::begin_connecting(detail::resolve(place).front());
  EXPECT_TRUE(detail::wait_for(fd.get(), POLLOUT, Deadline(std::chrono::seconds(30))));
  EXPECT_EQ(detail::connecting_result(fd), 0);
  return fd;
}

class Listening {
 public:
  Listening() {
    const detail::MeetingPlace any{"127.0.0.1", 0};
    listener_ = detail::listen_at(detail::resolve(any), any);
  }
  int port() const { return detail::port_of(listener_); }
  FileDescriptor accept() const {
    EXPECT_TRUE(detail::wait_for(listener_.get(), POLLIN, Deadline(std::chrono::seconds(30))));
    return detail::accept_from(listener_);
  }
  detail::NetMeetingOptions options_of(int rank, std::int64_t epoch) const {
    detail::NetMeetingOptions options;
    options.identity.rank = options.identity.local_rank = rank;
    options.identity.size = options.identity.local_size = 2;
    options.identity.token = kTheToken;
    options.identity.job = kTheJob;
    options.identity.epoch = epoch;
    options.listener = rank == 0 ? listener_.get() : -1;
    options.place = concat("127.0.0.1:", port());
    options.where = "this test";
    options.timeout = std::chrono::seconds(60);
    return options;
  }

 private:
  FileDescriptor listener_;
};

// Our rank 0 of two, which waits in a process of its own.
class OurHost : public Listening {
 public:
  explicit OurHost(std::int64_t epoch = 0) : epoch_(epoch) {
    pid_ = fork_rank(0, [&](int) {
      detail::NetMeeting meeting(options_of(0, epoch_));
      EXPECT_EQ(meeting.exchange("of rank 0").at(1), "of rank 1");
    });
  }
  OurHost(const OurHost&) = delete;
  OurHost& operator=(const OurHost&) = delete;
  ~OurHost() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      testing::wait_for(pid_);
    }
  }
  FileDescriptor connect() const { return connected_to(port()); }
  Spoken spoken() const { return {.job = kTheJob, .epoch = epoch_}; }
  void expect_served() {
    const pid_t joiner = fork_rank(1, [&](int) {
      detail::NetMeeting meeting(options_of(1, epoch_));
      EXPECT_EQ(meeting.exchange("of rank 1").at(0), "of rank 0");
    });
    EXPECT_EQ(testing::wait_for(joiner), 0);
    expect_ended();
  }
  void expect_ended() {
    EXPECT_EQ(testing::wait_for(pid_), 0);
    pid_ = -1;
  }

 private:
  std::int64_t epoch_;
  pid_t pid_ = -1;
};

std::string rank_1() {
  return MemberByHand{.rank = 1, .size = 2, .library = TRIREME_VERSION}.bytes();
}

// --- the joiner is by hand

TEST(Handshake, AdmitsAJoinerByHandAndSpeaksUnderItsKeys) {
  OurHost host(5);
  const FileDescriptor fd = host.connect();
  JoinerByHand joiner(fd.get(), kTheToken);
  ASSERT_TRUE(joiner.greet(host.spoken()));
  const auto verdict = joiner.introduce(rank_1());
  EXPECT_TRUE(verdict.admitted && verdict.genuine) << verdict.message;
  // Rank 0's first word: nobody is lost; the world's name, its key and its members.
  const std::string first = testing::read_frame(fd.get());
  EXPECT_EQ(first.find("by-hand"), std::string::npos) << "it can be read on the way";
  Reading word(testing::opened_by_hand(joiner.receive_key(), 0, first));
  EXPECT_EQ(word.number(), -1);
  Reading all(word.text());
  EXPECT_EQ(all.text().size(), 32U);  // its name, in hexadecimal digits
  EXPECT_EQ(all.text().size(), 32U);  // its key
  EXPECT_NE(all.text(), "");
  EXPECT_NE(all.text().find("by-hand"), std::string::npos);
  EXPECT_TRUE(all.at_end());
  // An exchange.
  ASSERT_TRUE(
      testing::send_frame(fd.get(), testing::sealed_by_hand(joiner.send_key(), 0, "of rank 1")));
  Reading answer(testing::opened_by_hand(joiner.receive_key(), 1, testing::read_frame(fd.get())));
  EXPECT_EQ(answer.number(), -1);
  Reading parts(answer.text());
  EXPECT_EQ(parts.number(), 2);
  EXPECT_EQ(parts.text(), "of rank 0");
  EXPECT_EQ(parts.text(), "of rank 1");
  host.expect_ended();
}

TEST(Handshake, RefusesAnEarlierEpochByName) {
  OurHost host(2);
  for (const std::int64_t epoch : {std::int64_t{1}, std::int64_t{-1}}) {
    const FileDescriptor fd = host.connect();
    JoinerByHand joiner(fd.get(), kTheToken);
    Spoken spoken = host.spoken();
    spoken.epoch = epoch;
    ASSERT_TRUE(joiner.greet(spoken));
    const auto verdict = joiner.introduce(rank_1());
    EXPECT_FALSE(verdict.admitted);
    EXPECT_TRUE(verdict.genuine);
    expect_parts(verdict.message,
                 {concat("refused rank 1 of 2 (pid ", getpid()),
                  concat("it belongs to attempt ", epoch, " at this job"),
                  "rank 0 to attempt 2 (TRIREME_EPOCH), which has superseded it"});
  }
  host.expect_served();
}

// Rank 0 says so, and so does a rank that it had admitted; the newcomer may try again.
TEST(Handshake, ALaterEpochEndsTheMeetingAndEveryoneNamesIt) {
  const std::string begun = "attempt 3 at this job has begun (rank 2 of 3 (pid";
  const Listening door;
  const pid_t host = fork_rank(0, [&](int) {
    detail::NetMeetingOptions options = door.options_of(0, 2);
    options.identity.size = options.identity.local_size = 3;
    expect_parts(message_of<CommError>([&] { detail::NetMeeting{options}; }),
                 {"rank 0 of 3 (pid", begun, "supersedes attempt 2 (TRIREME_EPOCH)"});
  });
  const auto of_three = [](int rank) {
    return MemberByHand{.rank = rank, .size = 3, .library = TRIREME_VERSION}.bytes();
  };
  const FileDescriptor first = connected_to(door.port());
  JoinerByHand guest(first.get(), kTheToken);
  ASSERT_TRUE(guest.greet({.job = kTheJob, .epoch = 2}));
  EXPECT_TRUE(guest.introduce(of_three(1)).admitted);
  const FileDescriptor second = connected_to(door.port());
  JoinerByHand later(second.get(), kTheToken);
  ASSERT_TRUE(later.greet({.job = kTheJob, .epoch = 3}));
  EXPECT_FALSE(later.introduce(of_three(2)).is_one) << "a verdict would be for good";
  Reading word(testing::opened_by_hand(guest.receive_key(), 0, testing::read_frame(first.get())));
  EXPECT_EQ(word.number(), 0);
  expect_parts(word.text(), {begun});
  EXPECT_EQ(testing::wait_for(host), 0);
}

// Somebody on the way makes an old epoch look like the right one, or the right one old.
TEST(Handshake, AnEpochThatIsAlteredOnTheWayBreaksTheHandshake) {
  OurHost host(2);
  for (const std::int64_t epoch : {1, 2}) {
    const FileDescriptor fd = host.connect();
    JoinerByHand joiner(fd.get(), kTheToken);
    Spoken spoken = host.spoken();
    spoken.epoch = epoch;
    const auto alter = [&](std::string& heard) {
      constexpr std::size_t kAfterwards = 8 + 8 + 32;  // whether it has a token, and its key
      heard.replace(heard.size() - kAfterwards - 8, 8, number(3 - epoch));
    };
    EXPECT_FALSE(joiner.greet(spoken, alter)) << "the host has proven what was not said";
    const auto verdict = joiner.introduce(rank_1());
    EXPECT_FALSE(verdict.admitted);
    EXPECT_FALSE(verdict.genuine);
    expect_parts(verdict.message, {"does not know the token"});
  }
  host.expect_served();
}

TEST(Handshake, AnIntroductionThatIsAlteredOnTheWayProvesNothing) {
  OurHost host;
  for (const std::size_t at : {0, 20, 200}) {
    const FileDescriptor fd = host.connect();
    JoinerByHand joiner(fd.get(), kTheToken);
    ASSERT_TRUE(joiner.greet(host.spoken()));
    const auto verdict = joiner.introduce(rank_1(), [&](std::string& sealed) { sealed[at] ^= 1; });
    EXPECT_TRUE(verdict.is_one);
    EXPECT_FALSE(verdict.admitted);
    EXPECT_FALSE(verdict.genuine);
  }
  host.expect_served();
}

// Somebody on the way has held back an introduction that was good, and says it all again later.
TEST(Handshake, AnOldConversationIsWorthNothing) {
  OurHost host;
  const FileDescriptor first = host.connect();
  JoinerByHand joiner(first.get(), kTheToken);
  ASSERT_TRUE(joiner.greet(host.spoken()));
  const std::string old_challenge = joiner.answer();
  std::string recorded;
  EXPECT_FALSE(joiner
                   .introduce(rank_1(),
                              [&](std::string& sealed) {
                                recorded = sealed;
                                sealed[0] ^= 1;
                              })
                   .admitted);
  const FileDescriptor second = host.connect();
  ASSERT_TRUE(testing::send_frame(second.get(), joiner.greeting()));
  EXPECT_NE(testing::read_frame(second.get()), old_challenge);  // the host has another key
  ASSERT_TRUE(testing::send_frame(second.get(), text(recorded)));
  const auto verdict = joiner.read_verdict(testing::read_frame(second.get()));
  EXPECT_TRUE(verdict.is_one);
  EXPECT_FALSE(verdict.admitted);
  EXPECT_FALSE(verdict.genuine);
  expect_parts(verdict.message, {"does not know the token"});
  host.expect_served();
}

TEST(Handshake, RefusesAtOnceWhoCannotBelong) {
  OurHost host;
  struct Case {
    std::function<void(Spoken&)> change;
    std::string why;
  };
  const std::vector<Case> cases = {
      {[](Spoken& spoken) { spoken.protocol = 5; }, "version 6 of the rendezvous protocol"},
      {[](Spoken& spoken) { spoken.purpose = "launcher"; }, "rendezvous protocol"},
      {[](Spoken& spoken) { spoken.job = "another"; }, "another job (TRIREME_JOB)"}};
  for (const Case& item : cases) {
    const FileDescriptor fd = host.connect();
    JoinerByHand joiner(fd.get(), kTheToken);
    Spoken spoken = host.spoken();
    item.change(spoken);
    EXPECT_FALSE(joiner.greet(spoken));
    const auto verdict = joiner.read_verdict(joiner.answer());
    EXPECT_TRUE(verdict.is_one && !verdict.admitted);
    expect_parts(verdict.message, {item.why});
  }
  // A public key from which everyone would get the same secret.
  const FileDescriptor fd = host.connect();
  JoinerByHand joiner(fd.get(), kTheToken);
  EXPECT_FALSE(joiner.greet(host.spoken(), [](std::string& heard) {
    heard.replace(heard.size() - 32, 32, std::string(32, '\0'));
  }));
  EXPECT_FALSE(joiner.read_verdict(joiner.answer()).admitted);
  host.expect_served();
}

// --- the host is by hand

TEST(Handshake, JoinsAHostByHandAndNoticesWhatIsAltered) {
  enum class Trick { kNone, kAltered, kReplayed, kLeftOut, kForgedVerdict };
  for (const Trick trick :
       {Trick::kNone, Trick::kAltered, Trick::kReplayed, Trick::kLeftOut, Trick::kForgedVerdict}) {
    const Listening door;
    const pid_t joiner = fork_rank(1, [&](int) {
      const auto meet = [&] {
        detail::NetMeeting meeting(door.options_of(1, 7));
        EXPECT_EQ(meeting.world(), "a world");
        EXPECT_EQ(meeting.key(), std::string(32, 'k'));
        EXPECT_EQ(meeting.exchange("of rank 1").at(0), "of rank 0");
      };
      if (trick == Trick::kNone) {
        meet();
      } else {
        const std::string message = message_of<CommError>(meet);
        expect_parts(message,
                     {trick == Trick::kForgedVerdict
                          ? "does not trust what listens at"
                          : "lost rank 0 (a message was altered, replayed or left out"});
      }
    });
    const FileDescriptor fd = door.accept();
    const std::string greeting = testing::read_frame(fd.get());
    Reading fields(greeting);
    EXPECT_EQ(fields.text(), "trireme rank");
    EXPECT_EQ(fields.number(), 6);
    EXPECT_EQ(fields.text(), testing::hash_by_hand(kTheJob));
    EXPECT_EQ(fields.number(), 7);
    EXPECT_EQ(fields.number(), 1);
    const testing::Keys mine;
    const std::string root = mine.root(kTheToken, fields.text(), greeting, mine.open());
    EXPECT_TRUE(fields.at_end());
    ASSERT_TRUE(testing::send_frame(
        fd.get(), number(1) + text(mine.open()) + text(testing::derived(root, "host"))));
    Reading introduction(testing::read_frame(fd.get()));
    const std::string said =
        testing::opened_by_hand(testing::derived(root, "joiner"), 0, introduction.text());
    EXPECT_EQ(said.substr(0, 8), number(1));
    const std::string verdict =
        trick == Trick::kForgedVerdict ? std::string(32, 'x') : testing::derived(root, "admitted");
    ASSERT_TRUE(testing::send_frame(fd.get(), number(2) + number(1) + text("") + text(verdict)));
    const std::string key = testing::derived(root, "host sends", said);
    const std::string members =
        text("a world") + text(std::string(32, 'k')) +
        text(MemberByHand{.rank = 0, .size = 2, .library = TRIREME_VERSION}.bytes()) + text(said);
    // Left out: the first that comes is the second that was sent.
    std::string first =
        testing::sealed_by_hand(key, trick == Trick::kLeftOut ? 1 : 0, number(-1) + text(members));
    if (trick == Trick::kAltered) {
      first[first.size() / 2] ^= 1;
    }
    testing::send_frame(fd.get(), first);
    if (trick == Trick::kNone) {
      EXPECT_EQ(testing::opened_by_hand(
                    testing::derived(root, "joiner sends", said), 0, testing::read_frame(fd.get())),
                "of rank 1");
    }
    const std::string parts = number(2) + text("of rank 0") + text("of rank 1");
    testing::send_frame(fd.get(),
                        trick == Trick::kReplayed
                            ? first
                            : testing::sealed_by_hand(key, 1, number(-1) + text(parts)));
    EXPECT_EQ(testing::wait_for(joiner), 0);
  }
}

// --- nonsense

std::string nonsense_like(const std::string& good, std::mt19937& random) {
  std::string bytes = good;
  const auto below = [&](std::size_t most) { return random() % std::max<std::size_t>(1, most); };
  switch (below(5)) {
    case 0:
      bytes.resize(below(bytes.size() + 1));
      break;
    case 1:
      bytes += std::string(below(4000), static_cast<char>(random()));
      break;
    case 2:  // a length that is none
      bytes.replace(below(bytes.size()), 8, number(static_cast<std::int64_t>(random()) << 31));
      break;
    case 3:
      bytes = std::string(below(200), '\0');
      for (char& byte : bytes) {
        byte = static_cast<char>(random());
      }
      break;
    default:
      for (std::size_t changes = 1 + below(8); changes > 0 && !bytes.empty(); --changes) {
        bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
      }
  }
  return bytes;
}

TEST(Handshake, NonsenseNeitherCrashesNorProves) {
  std::mt19937 random(4711);
  const detail::Pass pass{"rank", kTheJob, 2, kTheToken};
  for (int round = 0; round < 3000; ++round) {
    detail::JoiningSide joiner(pass);
    detail::HostingSide host(pass);
    std::string why;
    const std::string greeting = nonsense_like(joiner.greeting(), random);
    host.take_greeting(greeting, &why);
    const auto good = host.take_greeting(joiner.greeting(), &why);
    ASSERT_TRUE(good);
    const std::string challenge = nonsense_like(*good, random);
    if (challenge != *good) {
      joiner.take_challenge(challenge);
      EXPECT_FALSE(joiner.host_is_genuine());
    }
    ASSERT_TRUE(joiner.take_challenge(*good));
    ASSERT_TRUE(joiner.host_is_genuine());
    const std::string said = joiner.introduce("rank 1");
    const std::string other = nonsense_like(said, random);
    if (other != said) {
      EXPECT_FALSE(host.take_introduction(other));
    }
    ASSERT_EQ(host.take_introduction(said), "rank 1");
    const std::string verdict = host.verdict(true, "");
    const auto read = joiner.read_verdict(nonsense_like(verdict, random));
    if (read && read->admitted) {
      EXPECT_TRUE(!read->genuine || read->message.empty());
    }
    EXPECT_TRUE(joiner.read_verdict(verdict)->genuine);
  }
}

TEST(Handshake, AHostSurvivesNonsense) {
  OurHost host;
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const FileDescriptor fd = host.connect();
    JoinerByHand joiner(fd.get(), kTheToken);
    if (round % 2 == 0) {
      testing::send_frame(
          fd.get(),
          nonsense_like(testing::greeting_by_hand(host.spoken(), testing::Keys().open()), random));
    } else if (joiner.greet(host.spoken())) {
      testing::send_frame(fd.get(), nonsense_like(text(rank_1()), random));
    }
    testing::read_frame(fd.get());
  }
  host.expect_served();
}

}  // namespace
}  // namespace trireme
