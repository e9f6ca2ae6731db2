// What a stranger who reaches rank 0's TCP port can do, and what it learns.

#include "comm/rendezvous/net_meeting.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/rendezvous/accept_pause.h"
#include "comm/rendezvous/build_id.h"
#include "comm/rendezvous/net_socket.h"
#include "comm/rendezvous/tcp_link.h"
#include "support/handshake_peer.h"
#include "support/memory_transport.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::Link;
using detail::NetMeeting;
using detail::NetMeetingOptions;
using testing::fork_rank;
using testing::JoinerByHand;
using testing::message_of;
using testing::Spoken;
using testing::wait_for;

constexpr char kTheToken[] = "the token of this test";
constexpr char kTheJob[] = "a job of this test";

// Rank 0 of two, which waits in a process of its own at a port of this machine.
class Waiting {
 public:
  explicit Waiting(std::int64_t epoch = 0) : epoch_(epoch) {
    const detail::MeetingPlace any{"127.0.0.1", 0};
    listener_ = detail::listen_at(detail::resolve(any), any);
    place_ = detail::MeetingPlace{"127.0.0.1", detail::port_of(listener_)};
    pid_ = fork_rank(0, [&](int) {
      NetMeetingOptions options = options_of(0);
      options.listener = listener_.get();
      const NetMeeting meeting(options);
      EXPECT_EQ(meeting.members().size(), 2U);
    });
  }
  ~Waiting() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      testing::wait_for(pid_);
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  pid_t pid() const { return pid_; }

  NetMeetingOptions options_of(int rank) const {
    NetMeetingOptions options;
    options.identity.rank = rank;
    options.identity.size = 2;
    options.identity.token = kTheToken;
    options.identity.local_rank = rank;
    options.identity.local_size = 2;
    options.identity.epoch = epoch_;
    options.identity.job = kTheJob;
    options.place = place_.text();
    options.where = "this test";
    options.timeout = std::chrono::seconds(60);
    return options;
  }

  std::unique_ptr<Link> connect() const {
    std::string why;
    auto link = detail::try_connect(
        detail::resolve(place_), soon(), [] {}, &why);
    EXPECT_TRUE(link) << why;
    return link;
  }

  // The real rank 1 is still let in, and rank 0 has its world.
  void expect_complete() {
    EXPECT_EQ(testing::wait_for(fork_rank(1, [&](int) { NetMeeting{options_of(1)}; })), 0);
    EXPECT_EQ(testing::wait_for(pid_), 0);
    pid_ = -1;
  }

  static Deadline soon() { return Deadline(std::chrono::seconds(30)); }

 private:
  std::int64_t epoch_;
  FileDescriptor listener_;
  detail::MeetingPlace place_;
  pid_t pid_ = -1;
};

// --- what a stranger learns

TEST(NetMeeting, AStrangerLearnsNothingAboutTheProgram) {
  Waiting host;
  const auto link = host.connect();
  JoinerByHand stranger(link->fd(), "a guess");
  EXPECT_FALSE(stranger.greet({.job = kTheJob}));
  const auto verdict = stranger.introduce(testing::MemberByHand{}.bytes());
  EXPECT_FALSE(verdict.admitted);
  const std::string heard = stranger.answer() + verdict.message;
  // It is this program that rank 0 runs.
  const std::string secrets[] = {detail::executable_build_id(),
                                 std::filesystem::read_symlink("/proc/self/exe").string(),
                                 detail::concat("pid ", host.pid()),
                                 "of 2",
                                 kTheToken};
  for (const std::string& secret : secrets) {
    EXPECT_FALSE(secret.empty());
    EXPECT_EQ(heard.find(secret), std::string::npos) << secret;
  }
  EXPECT_NE(heard.find("does not know the token"), std::string::npos);
  // Which word it is, a key, a proof: nothing else fits.
  EXPECT_EQ(stranger.answer().size(), 8U + 8U + 32U + 8U + 32U);
  host.expect_complete();
}

// The other way round: what listens in the place of rank 0 and does not know the token.
TEST(NetMeeting, WhoPlaysRankZeroLearnsNothingAboutTheProgram) {
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const FileDescriptor listener = detail::listen_at(detail::resolve(any), any);
  const detail::MeetingPlace place{"127.0.0.1", detail::port_of(listener)};
  const pid_t joiner = fork_rank(1, [&](int) {
    NetMeetingOptions options;
    options.identity.rank = 1;
    options.identity.size = 2;
    options.identity.token = kTheToken;
    options.identity.job = kTheJob;
    options.place = place.text();
    options.timeout = std::chrono::seconds(60);
    const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
    // Its words are shown without what a terminal would obey.
    EXPECT_NE(message.find("was refused by what listens at " + place.text()), std::string::npos)
        << message;
    EXPECT_NE(message.find("\\x1b[2J\\x0aforged"), std::string::npos) << message;
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
    EXPECT_EQ(message.find('\n'), std::string::npos);
  });
  pollfd entry{listener.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 30'000), 1);
  const FileDescriptor fd = detail::accept_from(listener);
  const std::string greeting = testing::read_frame(fd.get());
  ASSERT_TRUE(testing::send_frame(fd.get(),
                                  testing::number(1) + testing::text(testing::Keys().open()) +
                                      testing::text(std::string(32, 'x'))));
  const std::string more = testing::read_frame(fd.get());
  // Nor a proof, which the real rank 0 would take.
  EXPECT_EQ(more, testing::text(""));
  for (const std::string& secret :
       {detail::executable_build_id(),
        std::filesystem::read_symlink("/proc/self/exe").filename().string()}) {
    EXPECT_FALSE(secret.empty());
    EXPECT_EQ((greeting + more).find(secret), std::string::npos) << secret;
  }
  ASSERT_TRUE(testing::send_frame(fd.get(),
                                  testing::number(2) + testing::number(0) +
                                      testing::text("\x1b[2J\nforged: a line") +
                                      testing::text("")));
  EXPECT_EQ(wait_for(joiner), 0);
}

TEST(NetMeeting, RefusesAWrongToken) {
  Waiting host;
  NetMeetingOptions options = host.options_of(1);
  options.identity.token = "a guess";
  const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
  EXPECT_NE(message.find("rank 1 of 2"), std::string::npos) << message;
  EXPECT_NE(message.find("it does not know the token of this job (TRIREME_TOKEN)"),
            std::string::npos)
      << message;
  host.expect_complete();
}

TEST(NetMeeting, NamesBothSidesToARankThatKnowsTheToken) {
  Waiting host;
  NetMeetingOptions options = host.options_of(1);
  options.identity.program_version = "2.0-other";
  const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
  for (const std::string& part : {detail::concat("rank 0 of 2 (pid ", host.pid(), ")"),
                                  detail::concat("refused rank 1 of 2 (pid ", getpid()),
                                  std::string("it runs program version \"2.0-other\"")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  host.expect_complete();
}

// Strangers come and are refused without end; why one was that knows the token is still said.
TEST(NetMeeting, StrangersDoNotUseUpThePlacesForReasons) {
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const FileDescriptor listener = detail::listen_at(detail::resolve(any), any);
  NetMeetingOptions options;
  options.identity.size = 2;
  options.identity.token = kTheToken;
  options.identity.job = kTheJob;
  options.place = detail::MeetingPlace{"127.0.0.1", detail::port_of(listener)}.text();
  options.where = "this test";
  options.timeout = std::chrono::seconds(6);
  const pid_t host = fork_rank(0, [&](int) {
    options.listener = listener.get();
    const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
    EXPECT_NE(message.find("it runs program version \"2.0-other\""), std::string::npos) << message;
    EXPECT_NE(message.find("it belongs to another job"), std::string::npos) << message;
    EXPECT_LT(message.size(), 10'000U);
  });
  const auto strangers_come = [&] {
    for (int i = 0; i < 30; ++i) {
      std::string why;
      const auto link = detail::try_connect(
          detail::resolve(detail::parse_meeting_place(options.place)),
          Waiting::soon(),
          [] {},
          &why);
      ASSERT_TRUE(link) << why;
      EXPECT_FALSE(JoinerByHand(link->fd(), kTheToken).greet({.job = "another"}));
    }
  };
  strangers_come();
  NetMeetingOptions other = options;
  other.identity.rank = 1;
  other.identity.program_version = "2.0-other";
  message_of<CommError>([&] { NetMeeting{other}; });
  strangers_come();
  EXPECT_EQ(wait_for(host), 0);
}

// What is left over of an earlier attempt at the job knows the token.
TEST(NetMeeting, RefusesARankOfAnEarlierAttempt) {
  Waiting host(2);
  NetMeetingOptions options = host.options_of(1);
  options.identity.epoch = 1;
  const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
  for (const std::string& part : {detail::concat("refused rank 1 of 2 (pid ", getpid()),
                                  std::string("it belongs to attempt 1"),
                                  std::string("rank 0 to attempt 2"),
                                  std::string("it is left over")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  host.expect_complete();
}

// The same, where it is rank 0 that is left over: it holds the port until the others come.
TEST(NetMeeting, ALaterAttemptTakesThePortOver) {
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const detail::MeetingPlace place{"127.0.0.1",
                                   detail::port_of(detail::listen_at(detail::resolve(any), any))};
  const auto meet = [&](int rank, std::int64_t epoch) {
    NetMeetingOptions options;
    options.identity.rank = options.identity.local_rank = rank;
    options.identity.size = options.identity.local_size = 2;
    options.identity.token = kTheToken;
    options.identity.epoch = epoch;
    options.place = place.text();
    options.where = "this test";
    options.timeout = std::chrono::seconds(60);
    NetMeeting{options};
  };
  const pid_t left_over = fork_rank(0, [&](int) {
    const std::string message = message_of<CommError>([&] { meet(0, 1); });
    EXPECT_NE(message.find("attempt 2 at this job has begun"), std::string::npos) << message;
  });
  std::string why;
  while (!detail::try_connect(
      detail::resolve(place), Waiting::soon(), [] {}, &why)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const pid_t member = fork_rank(1, [&](int) { meet(1, 2); });
  const pid_t host = fork_rank(0, [&](int) { meet(0, 2); });
  for (const pid_t pid : {left_over, host, member}) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

// --- what strangers cost

// The most memory that a process has had so far, by the kernel.
std::int64_t peak_bytes(pid_t pid) {
  std::ifstream file(detail::concat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) {
      std::istringstream fields(line.substr(6));
      std::int64_t kibibytes = 0;
      fields >> kibibytes;
      return kibibytes << 10;
    }
  }
  return 0;
}

TEST(NetMeeting, ALengthIsNotBelievedBeforeAdmission) {
  Waiting host;
  host.connect();  // and hangs up: rank 0 is at work
  const std::int64_t before = peak_bytes(host.pid());
  constexpr std::size_t kEach = 48 << 20;
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    const auto stranger = host.connect();
    const std::string length("\0\0\0\4", 4);  // 64 MiB
    ASSERT_EQ(send(stranger->fd(), length.data(), length.size(), MSG_NOSIGNAL), 4);
    std::size_t taken = 0;
    bool is_open = true;
    while (is_open && taken < kEach) {
      const ssize_t more = send(stranger->fd(), piece.data(), piece.size(), MSG_NOSIGNAL);
      if (more > 0) {
        taken += static_cast<std::size_t>(more);
      } else if (errno == EAGAIN) {
        is_open = detail::wait_for(stranger->fd(), POLLOUT, Waiting::soon());
      } else {
        is_open = false;
      }
    }
    EXPECT_LT(taken, kEach) << "rank 0 has read all of it";
  }
  EXPECT_LT(peak_bytes(host.pid()) - before, static_cast<std::int64_t>(kEach));
  host.expect_complete();
}

std::size_t sockets_of(pid_t pid) {
  std::size_t count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(detail::concat("/proc/", pid, "/fd"), error)) {
    count += std::filesystem::read_symlink(entry.path(), error).string().starts_with("socket:");
  }
  return count;
}

// Silent strangers fill the places that there are for them, no more, and lose them again.
TEST(NetMeeting, TalksToFewStrangersAtOnceAndStillFindsItsRanks) {
  Waiting host;
  const std::size_t before = sockets_of(host.pid());
  std::vector<std::unique_ptr<Link>> strangers;
  for (std::size_t i = 0; i < 2 * detail::kMostStrangers; ++i) {
    strangers.push_back(host.connect());
  }
  std::size_t most = 0;
  for (int i = 0; i < 3000 && most < detail::kMostStrangers; ++i) {
    most = std::max(most, sockets_of(host.pid()));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (int i = 0; i < 20; ++i) {
    most = std::max(most, sockets_of(host.pid()));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GE(most, detail::kMostStrangers);
  EXPECT_LE(most, before + detail::kMostStrangers + 2);  // its own copy of the listener
  host.expect_complete();
}

TEST(AcceptPause, RestsOnlyWhenThereIsNoDescriptorLeft) {
  detail::AcceptPause pause;
  EXPECT_TRUE(pause.over());
  EXPECT_FALSE(pause.failed(EAGAIN));
  EXPECT_TRUE(pause.over());
  EXPECT_TRUE(pause.failed(EMFILE));
  EXPECT_FALSE(pause.over());
  EXPECT_FALSE(pause.failed(ENFILE)) << "it is said once";
  EXPECT_FALSE(pause.over());
}

// A connection that cannot be accepted stays in the queue and keeps the listener ready. Whoever
// sleeps between two looks gives the processor away, which the kernel counts.
TEST(NetMeeting, DoesNotSpinWhenNoDescriptorIsLeft) {
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const FileDescriptor listener = detail::listen_at(detail::resolve(any), any);
  const detail::MeetingPlace place{"127.0.0.1", detail::port_of(listener)};
  std::string why;
  const auto stranger = detail::try_connect(
      detail::resolve(place), Waiting::soon(), [] {}, &why);
  ASSERT_TRUE(stranger) << why;
  constexpr int kSeconds = 2;
  const pid_t host = fork_rank(0, [&](int) {
    NetMeetingOptions options;
    options.identity.size = 2;
    options.identity.token = kTheToken;
    options.identity.job = kTheJob;
    options.place = place.text();
    options.listener = listener.get();
    options.timeout = std::chrono::seconds(kSeconds);
    // Room for rank 0's own copy of the listener, and for nothing else.
    const int next = dup(listener.get());
    ASSERT_GE(next, 0);
    close(next);
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = static_cast<rlim_t>(next) + 1;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    rusage before{};
    getrusage(RUSAGE_THREAD, &before);
    const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
    rusage after{};
    getrusage(RUSAGE_THREAD, &after);
    EXPECT_NE(message.find("no file descriptors left"), std::string::npos) << message;
    EXPECT_NE(message.find("ulimit -n"), std::string::npos) << message;
    // A look lasts 0.2 s at most: ten of them, and fewer where the machine is busy.
    EXPECT_GT(after.ru_nvcsw - before.ru_nvcsw, kSeconds);
  });
  EXPECT_EQ(wait_for(host), 0);
}

// As a launcher hands it down, the listener would go on to every program that rank 0 starts.
TEST(NetMeeting, ProgramsOfRankZeroDoNotInheritItsListener) {
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const FileDescriptor listener = detail::listen_at(detail::resolve(any), any);
  ASSERT_EQ(fcntl(listener.get(), F_SETFD, 0), 0);
  NetMeetingOptions options;
  options.identity.size = 2;
  options.identity.token = kTheToken;
  options.listener = listener.get();
  options.timeout = Milliseconds(50);
  message_of<CommError>([&] { NetMeeting{options}; });
  EXPECT_EQ(fcntl(listener.get(), F_GETFD), FD_CLOEXEC);
}

// Ranks that MPI connects have neither ports nor firewalls to look at.
TEST(NetMeeting, WhoMeetsThroughMpiIsToldToLookAtMpi) {
  for (const int rank : {0, 1}) {
    testing::MemoryTransport transport(rank, std::make_shared<testing::Post>());
    NetMeetingOptions options;
    options.identity.rank = rank;
    options.identity.size = 2;
    options.transport = &transport;
    options.timeout = Milliseconds(50);
    const std::string message = message_of<CommError>([&] { NetMeeting{options}; });
    EXPECT_NE(message.find("mpirun"), std::string::npos) << message;
    EXPECT_NE(message.find("memory"), std::string::npos)
        << message;  // what the transport is called
    EXPECT_EQ(message.find("firewall"), std::string::npos) << message;
  }
}

// --- without a token

TEST(NetMeeting, NoneIsATokenThatEveryoneKnowsOverTheNetwork) {
  const std::string job = testing::unique_job();
  const detail::MeetingPlace any{"127.0.0.1", 0};
  const int port = detail::port_of(detail::listen_at(detail::resolve(any), any));
  testing::fork_ranks(2, [&](int rank) {
    InitOptions options = testing::options_for(job, rank, 2);
    options.backend = "ucx";
    options.rendezvous = detail::MeetingPlace{"127.0.0.1", port}.text();
    options.token = "none";
    EXPECT_EQ(init(options)->size(), 2);
  });
}

TEST(NetMeeting, RanksWithoutATokenDoNotMeetAtAPort) {
  unsetenv("TRIREME_TOKEN");
  InitOptions options = testing::options_for("a job", 1, 2);
  options.backend = "ucx";
  options.rendezvous = "127.0.0.1:1";
  options.token = "";
  const std::string message = message_of<ConfigError>([&] { init(options); });
  for (const char* part : {"127.0.0.1:1",
                           "InitOptions::rendezvous",
                           "TRIREME_TOKEN empty",
                           "export TRIREME_TOKEN=$(openssl rand -hex 16)",
                           "TRIREME_TOKEN=none"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace trireme
