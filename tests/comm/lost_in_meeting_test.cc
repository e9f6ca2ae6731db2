// Ranks that are lost between their admission and the end of init(): every other one names them,
// not rank 0, through which they talk.

#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/rendezvous/net_meeting.h"
#include "comm/rendezvous/net_socket.h"
#include "support/ranks.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

class LostInMeeting : public ::testing::Test {
 protected:
  detail::NetMeetingOptions options_of(int rank, int size, Milliseconds timeout) const {
    detail::NetMeetingOptions options;
    options.identity.rank = options.identity.local_rank = rank;
    options.identity.size = options.identity.local_size = size;
    options.identity.token = "the token of this test";
    options.identity.job = "a job of this test";
    options.place = detail::MeetingPlace{"127.0.0.1", detail::port_of(listener_)}.text();
    options.where = "this test";
    options.listener = rank == 0 ? listener_.get() : -1;
    options.timeout = timeout;
    return options;
  }

 private:
  const detail::MeetingPlace any_{"127.0.0.1", 0};
  const FileDescriptor listener_ = detail::listen_at(detail::resolve(any_), any_);
};

TEST_F(LostInMeeting, IsNamedByEveryone) {
  constexpr int kSize = 4;
  constexpr int kVictim = 2;
  testing::fork_ranks(kSize, [&](int rank) {
    detail::NetMeeting meeting(options_of(rank, kSize, std::chrono::seconds(60)));
    EXPECT_EQ(meeting.exchange(std::string(1, static_cast<char>('a' + rank))),
              (std::vector<std::string>{"a", "b", "c", "d"}));
    if (rank == kVictim) {
      _exit(0);
    }
    try {
      meeting.exchange("");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied) << error.what();
      EXPECT_EQ(error.peer(), kVictim) << error.what();
      EXPECT_NE(std::string(error.what()).find("lost rank 2"), std::string::npos) << error.what();
    }
  });
}

// One that has used all of its time to reach the others, and began a little after rank 0, still
// says whom it could not reach: rank 0 does not take it for lost.
TEST_F(LostInMeeting, WhoHasUsedAllOfItsTimeStillHasItsSay) {
  constexpr Milliseconds kTimeout{3000};
  testing::fork_ranks(3, [&](int rank) {
    std::this_thread::sleep_for(Milliseconds(rank == 1 ? 300 : 0));
    const Deadline own(kTimeout);
    detail::NetMeeting meeting(options_of(rank, 3, kTimeout));
    while (rank == 1 && !own.passed()) {
      std::this_thread::sleep_for(Milliseconds(10));
    }
    EXPECT_EQ(meeting.exchange(rank == 1 ? "rank 2" : ""),
              (std::vector<std::string>{"", "rank 2", ""}));
  });
}

// Ranks 0 and 1 of three meet; rank 1 has begun to wait half a second before rank 0.
void expect_missing_rank_2(const std::function<void(int rank)>& meet) {
  testing::fork_ranks(2, [&](int rank) {
    std::this_thread::sleep_for(Milliseconds(rank == 0 ? 500 : 0));
    try {
      meet(rank);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kRendezvousTimeout) << error.what();
      EXPECT_EQ(error.peer(), 2) << error.what();
      EXPECT_NE(std::string(error.what()).find("missing: 2"), std::string::npos) << error.what();
    }
  });
}

TEST_F(LostInMeeting, OneThatNeverComesIsNamedByThoseWhoseTimeIsOverFirst) {
  expect_missing_rank_2(
      [&](int rank) { detail::NetMeeting{options_of(rank, 3, std::chrono::seconds(3))}; });
}

TEST_F(LostInMeeting, OneThatNeverComesToAMachineIsNamedLikewise) {
  const std::string job = testing::unique_job();
  expect_missing_rank_2([&](int rank) {
    InitOptions options = testing::options_for(job, rank, 3);
    options.timeout = std::chrono::seconds(3);
    init(options);
  });
}

// What cannot be connected to may have left because the world has ended, of which the launcher
// tells: a loss, after which there is another world, and no mistake.
TEST_F(LostInMeeting, AWorldThatCannotBeBuiltMayHaveEnded) {
  for (const bool ended : {true, false}) {
    testing::fork_ranks(1, [&](int rank) {
      int ends[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
      setenv(kEnvMembership, std::to_string(ends[0]).c_str(), 1);
      std::thread launcher([&] {
        std::this_thread::sleep_for(Milliseconds(100));  // its word comes a little later
        const std::string word = detail::concat(kLostWord, " rank 1 is gone");
        EXPECT_TRUE(!ended || send(ends[1], word.data(), word.size(), 0) > 0);
      });
      InitOptions options = testing::options_for(testing::unique_job(), rank, 2);
      options.backend = "ucx";
      options.rendezvous = "no place";  // as wrong as one that nobody is at any more
      std::string text;
      if (ended) {
        text = testing::message_of<CommError>([&] { init(options); });
      } else {
        text = testing::message_of<ConfigError>([&] { init(options); });
      }
      EXPECT_NE(text.find(ended ? "rank 1 is gone" : "no place"), std::string::npos) << text;
      launcher.join();
    });
  }
}

}  // namespace
}  // namespace trireme
