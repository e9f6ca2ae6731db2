// Ranks that are lost between their admission and the end of init(): every other one names them,
// not rank 0, through which they talk.

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

#include "comm/rendezvous/net_meeting.h"
#include "comm/rendezvous/net_socket.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

TEST(LostInMeeting, IsNamedByEveryone) {
  constexpr int kSize = 4;
  constexpr int kVictim = 2;
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const FileDescriptor listener = detail::listen_at(detail::resolve(any), any);
  testing::fork_ranks(kSize, [&](int rank) {
    detail::NetMeetingOptions options;
    options.identity.rank = rank;
    options.identity.size = kSize;
    options.identity.token = "the token of this test";
    options.identity.local_rank = rank;
    options.identity.local_size = kSize;
    options.identity.job = "a job of this test";
    options.place = detail::MeetingPlace{"127.0.0.1", detail::port_of(listener)}.text();
    options.where = "this test";
    options.listener = rank == 0 ? listener.get() : -1;
    options.timeout = std::chrono::seconds(60);
    detail::NetMeeting meeting(options);
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

}  // namespace
}  // namespace trireme
