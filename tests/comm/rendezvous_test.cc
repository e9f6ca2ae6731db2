#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/api/communicator_builder.h"
#include "comm/rendezvous/secrets.h"
#include "comm/rendezvous/unix_link.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_rank;
using testing::message_of;
using testing::options_for;
using testing::unique_job;
using testing::wait_for;

// Rank 0 of two waits; an intruder comes first and must be refused with all of `parts`; then the
// real rank 1 is still let in.
void expect_refused(const std::function<void(InitOptions&)>& disguise,
                    const std::vector<std::string>& parts,
                    std::int64_t epoch = 0) {
  const std::string job = unique_job();
  const auto join = [&](int rank) {
    InitOptions options = options_for(job, rank, 2);
    options.epoch = epoch;
    const auto world = init(options);
    world->barrier().wait();
  };
  const pid_t host = fork_rank(0, join);
  const pid_t intruder = fork_rank(1, [&](int) {
    InitOptions options = options_for(job, 1, 2);
    options.epoch = epoch;
    disguise(options);
    try {
      init(options);
      ADD_FAILURE() << "the intruder was let in";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kRefused);
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  });
  EXPECT_EQ(wait_for(intruder), 0);
  const pid_t member = fork_rank(1, join);
  EXPECT_EQ(wait_for(member), 0);
  EXPECT_EQ(wait_for(host), 0);
}

TEST(Rendezvous, RefusesAWrongToken) {
  expect_refused([](InitOptions& options) { options.token = "a guess"; },
                 {"rank 1 of 2", "was refused by what listens at", "does not know the token"});
}

TEST(Rendezvous, RefusesNoToken) {
  unsetenv("TRIREME_TOKEN");
  expect_refused([](InitOptions& options) { options.token = ""; }, {"does not know the token"});
}

// "none" is no secret, wherever ranks meet: it goes with nothing at all.
TEST(Rendezvous, NoneIsTheSameAsNoToken) {
  unsetenv("TRIREME_TOKEN");
  const std::string job = unique_job();
  testing::fork_ranks(2, [&](int rank) {
    InitOptions options = options_for(job, rank, 2);
    options.token = rank == 0 ? "none" : "";
    init(options)->barrier().wait();
  });
}

TEST(Rendezvous, RefusesAWrongWorldSize) {
  expect_refused([](InitOptions& options) { options.size = 3; },
                 {"for a world of 3 ranks and rank 0 for one of 2", "rank 1 of 3"});
}

TEST(Rendezvous, RefusesAnotherProgramVersion) {
  expect_refused([](InitOptions& options) { options.program_version = "2.0-other"; },
                 {"\"2.0-other\"", "and rank 0 runs"});
}

TEST(Rendezvous, RefusesWhoWouldAddUpDifferently) {
  expect_refused([](InitOptions& options) { options.sum_group = 2; },
                 {"groups of 2 ranks first and rank 0 groups of 1", "TRIREME_SUM_GROUP"});
}

TEST(Rendezvous, RefusesWhoEncryptsAlone) {
  expect_refused([](InitOptions& options) { options.encrypt = true; },
                 {"it encrypts and rank 0 does not encrypt", "TRIREME_ENCRYPT"});
}

TEST(Rendezvous, RefusesWhoChecksAlone) {
  expect_refused([](InitOptions& options) { options.checksums = true; },
                 {"it checks all messages and rank 0 does not", "TRIREME_CHECKSUMS"});
}

TEST(Rendezvous, RefusesAnotherAlgorithm) {
  expect_refused([](InitOptions& options) { options.algorithm = "ring"; },
                 {"the algorithm \"ring\" and rank 0 \"auto\"", "TRIREME_ALGORITHM"});
}

// One that has outlived its attempt at the job.
TEST(Rendezvous, RefusesARankOfAnEarlierAttempt) {
  expect_refused([](InitOptions& options) { options.epoch = 1; },
                 {"refused rank 1 of 2 (pid",
                  "it belongs to attempt 1",
                  "rank 0 to attempt 2",
                  "which has superseded it",
                  "so it is left"},
                 2);
}

TEST(Rendezvous, TakesTheAttemptFromTheLauncher) {
  setenv("TRIREME_EPOCH", "7", 1);
  expect_refused([](InitOptions& options) { options.epoch.reset(); },
                 {"it belongs to attempt 7", "rank 0 to attempt 8"},
                 8);
  unsetenv("TRIREME_EPOCH");
}

TEST(Rendezvous, RefusesAnAttemptThatIsNoNumber) {
  InitOptions options = options_for(unique_job(), 0, 1);
  options.epoch = -1;
  EXPECT_NE(message_of<ConfigError>([&] { init(options); }).find("InitOptions::epoch"),
            std::string::npos);
  options.epoch.reset();
  setenv("TRIREME_EPOCH", "second", 1);
  EXPECT_NE(message_of<ConfigError>([&] { init(options); }).find("TRIREME_EPOCH"),
            std::string::npos);
  unsetenv("TRIREME_EPOCH");
}

// A process that lives on after its world has failed, and one that is started in the place of the
// lost: however many worlds each has been in, they meet in the next attempt.
TEST(Rendezvous, SurvivorsAndNewcomersMeetInTheNextAttempt) {
  const std::string job = unique_job();
  const auto join = [&](int rank, std::int64_t epoch) {
    InitOptions options = options_for(job, rank, 2);
    options.epoch = epoch;
    options.timeout = std::chrono::seconds(20);
    init(options)->barrier().wait();
  };
  const pid_t survivor = fork_rank(0, [&](int rank) {
    join(rank, 0);
    join(rank, 0);
    join(rank, 1);
  });
  const pid_t lost = fork_rank(1, [&](int rank) {
    join(rank, 0);
    join(rank, 0);
  });
  EXPECT_EQ(wait_for(lost), 0);
  EXPECT_EQ(wait_for(fork_rank(1, [&](int rank) { join(rank, 1); })), 0);
  EXPECT_EQ(wait_for(survivor), 0);
}

// Nobody counts worlds: an init() that failed on some ranks does not keep them apart afterwards.
TEST(Rendezvous, RanksMeetAgainAfterAnInitThatFailed) {
  const std::string job = unique_job();
  const auto join = [&](int rank) { init(options_for(job, rank, 2))->barrier().wait(); };
  int failed[2] = {};
  ASSERT_EQ(pipe(failed), 0);
  const pid_t host = fork_rank(0, [&](int rank) {
    InitOptions hasty = options_for(job, rank, 2);
    hasty.timeout = Milliseconds(50);
    EXPECT_NE(message_of<CommError>([&] { init(hasty); }).find("missing: 1"), std::string::npos);
    EXPECT_EQ(write(failed[1], "x", 1), 1);
    join(rank);
    join(rank);
  });
  char byte = 0;
  EXPECT_EQ(read(failed[0], &byte, 1), 1);
  const pid_t other = fork_rank(1, [&](int rank) {
    join(rank);
    join(rank);
  });
  EXPECT_EQ(wait_for(other), 0);
  EXPECT_EQ(wait_for(host), 0);
  close(failed[0]);
  close(failed[1]);
}

// Two worlds of one job side by side, each with its groups.
TEST(Rendezvous, WorldsOfOneJobAndTheirGroupsDoNotMeetEachOther) {
  const std::string job = unique_job();
  testing::fork_ranks(2, [&](int rank) {
    const auto first = init(options_for(job, rank, 2));
    const auto second = init(options_for(job, rank, 2));
    const auto of_second = second->split(0, rank);
    const auto of_first = first->split(0, 1 - rank);
    EXPECT_EQ(of_second->rank(), rank);
    EXPECT_EQ(of_first->rank(), 1 - rank);
    of_first->barrier().wait();
    of_second->barrier().wait();
  });
}

TEST(Rendezvous, RefusesADuplicateRank) {
  const std::string job = unique_job();
  const auto join = [&](int rank) { init(options_for(job, rank, 3)); };
  const pid_t host = fork_rank(0, join);
  // Two processes claim rank 1: one is in, the other is told who has its place.
  const auto claim = [&](int rank) {
    try {
      init(options_for(job, rank, 3));
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 is already taken by pid"), std::string::npos)
          << error.what();
      _exit(42);
    }
  };
  const pid_t one = fork_rank(1, claim);
  const pid_t two = fork_rank(1, claim);
  int status = 0;
  const pid_t refused = waitpid(-1, &status, 0);
  EXPECT_TRUE(refused == one || refused == two);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  const pid_t last = fork_rank(2, join);
  EXPECT_EQ(wait_for(refused == one ? two : one), 0);
  EXPECT_EQ(wait_for(last), 0);
  EXPECT_EQ(wait_for(host), 0);
}

// The name of the socket at which `host` waits for its peers, once it does: of this process, since
// others on the machine may wait for theirs.
std::string door_of(pid_t host) {
  namespace fs = std::filesystem;
  for (int i = 0; i < 3000; ++i) {
    std::set<std::string> open;
    std::error_code error;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(detail::concat("/proc/", host, "/fd"), error)) {
      open.insert(fs::read_symlink(entry.path(), error).string());
    }
    std::ifstream file("/proc/net/unix");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, references, protocol, flags, type, state, inode, name;
      words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
      constexpr const char* kListens = "00010000";
      if (name.starts_with("@trireme/") && flags == kListens &&
          open.count("socket:[" + inode + "]") > 0) {
        return name.substr(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "process " << host << " has opened no door in 30 s";
  return {};
}

// Rank 0 has outlived its attempt: it ends, and says by whom it learned of it. The ranks of the
// later attempt meet in its place.
TEST(Rendezvous, ALaterAttemptEndsTheMeetingOfAnEarlierOne) {
  const std::string job = unique_job();
  const auto join = [&](int rank, std::int64_t epoch) {
    InitOptions options = options_for(job, rank, 2);
    options.epoch = epoch;
    init(options)->barrier().wait();
  };
  const pid_t left_over = fork_rank(0, [&](int rank) {
    const std::string message = message_of<CommError>([&] { join(rank, 2); });
    for (const char* part : {"rank 0 of 2 (pid",
                             "attempt 3 at this job has begun (rank 1 of 2 (pid",
                             "supersedes attempt 2 (TRIREME_EPOCH)"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  });
  door_of(left_over);
  const pid_t member = fork_rank(1, [&](int rank) { join(rank, 3); });
  const pid_t host = fork_rank(0, [&](int rank) { join(rank, 3); });
  for (const pid_t pid : {left_over, host, member}) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

TEST(Rendezvous, RefusesASecondRankZero) {
  const std::string job = unique_job();
  const pid_t host = fork_rank(0, [&](int) { init(options_for(job, 0, 2)); });
  door_of(host);  // before it is open, this process would be rank 0 itself
  const std::string message = message_of<CommError>([&] { init(options_for(job, 0, 2)); });
  EXPECT_NE(message.find("is already rank 0"), std::string::npos) << message;
  EXPECT_NE(message.find(detail::concat("pid ", host)), std::string::npos) << message;
  kill(host, SIGKILL);
  wait_for(host);
}

TEST(Rendezvous, NamesTheMissingRanksAtTheDeadline) {
  InitOptions options = options_for(unique_job(), 0, 3);
  options.timeout = Milliseconds(300);
  const std::string message = message_of<CommError>([&] { init(options); });
  EXPECT_NE(message.find("1 of 3 ranks met, missing: 1, 2"), std::string::npos) << message;
}

TEST(Rendezvous, ARankWithoutRankZeroGivesUpAtTheDeadline) {
  InitOptions options = options_for(unique_job(), 1, 2);
  options.timeout = Milliseconds(300);
  const std::string message = message_of<CommError>([&] { init(options); });
  EXPECT_NE(message.find("found no rank 0"), std::string::npos) << message;
}

// Rank 0 has admitted this process: it was given a descriptor of it.
bool has_admitted(pid_t host, pid_t member) {
  const std::string line = detail::concat("\nPid:\t", member, "\n");
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(detail::concat("/proc/", host, "/fdinfo"), error)) {
    if (testing::read_file(entry.path().string()).find(line) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(Rendezvous, ARankThatDiesAfterJoiningCanBeStartedAgain) {
  const std::string job = unique_job();
  const auto join = [&](int rank) { init(options_for(job, rank, 3))->barrier().wait(); };
  const pid_t host = fork_rank(0, join);
  const pid_t victim = fork_rank(1, join);
  EXPECT_TRUE(testing::comes_true([&] { return has_admitted(host, victim); }));
  kill(victim, SIGKILL);
  wait_for(victim);
  const pid_t second = fork_rank(1, join);
  const pid_t third = fork_rank(2, join);
  for (const pid_t pid : {second, third, host}) {
    EXPECT_EQ(wait_for(pid), 0);
  }
}

// Strangers that say nothing, or nonsense, hold nobody up.
// No rank but this one can do anything about its limits.
TEST(Rendezvous, ARankWithTooFewOpenFilesBlamesItself) {
  constexpr int kSize = 6;
  constexpr int kPoor = 3;
  const std::string job = unique_job();
  testing::fork_ranks(kSize, [&](int rank) {
    if (rank == kPoor) {
      const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                      std::filesystem::directory_iterator{});
      // Enough for the socket, this process's handle and the control memory, not for the peers.
      const rlimit few{static_cast<rlim_t>(open) + 4, static_cast<rlim_t>(open) + 4};
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    }
    try {
      init(options_for(job, rank, kSize))->barrier().wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), kPoor) << error.what();
      if (rank == kPoor) {
        EXPECT_NE(std::string(error.what()).find("ulimit -n"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Rendezvous, RefusesAStageThatCannotBe) {
  for (const std::size_t bytes : {std::size_t{1} << 62, (std::size_t{1} << 63) - 1, SIZE_MAX}) {
    InitOptions options = options_for(unique_job(), 0, 1);
    options.stage_bytes = bytes;
    const std::string message = message_of<ConfigError>([&] { init(options); });
    EXPECT_NE(message.find("InitOptions::stage_bytes"), std::string::npos) << message;
  }
}

TEST(Rendezvous, IsNotHeldUpByStrangers) {
  const std::string job = unique_job();
  const auto join = [&](int rank) { init(options_for(job, rank, 2)); };
  const pid_t host = fork_rank(0, join);
  const std::string door = door_of(host);
  std::vector<std::unique_ptr<detail::Link>> strangers;
  for (int i = 0; i < 3; ++i) {
    auto link = detail::connect_to(door);
    ASSERT_TRUE(link);
    if (i == 1) {
      link->send("nonsense");
    }
    strangers.push_back(std::move(link));
  }
  EXPECT_EQ(wait_for(fork_rank(1, join)), 0);
  EXPECT_EQ(wait_for(host), 0);
}

// Another user has taken the name: that is no rank 0 of ours.
TEST(Rendezvous, NamesAnotherUserWhoHasTakenTheName) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string job = unique_job();
  const std::string name = detail::meeting_name(detail::hex_digest(job));
  int taken[2] = {};
  ASSERT_EQ(pipe(taken), 0);
  const pid_t other = fork_rank(1, [&](int) {
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    const auto door = detail::UnixDoor::open(name);
    ASSERT_TRUE(door);
    EXPECT_EQ(write(taken[1], "x", 1), 1);
    pause();
  });
  char byte = 0;
  EXPECT_EQ(read(taken[0], &byte, 1), 1);
  const std::string message = message_of<CommError>([&] { init(options_for(job, 0, 2)); });
  for (const std::string& part : {detail::concat("pid ", other, " has taken the name @", name),
                                  std::string("it belongs to user 65534"),
                                  std::string("TRIREME_JOB")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(message.find("already rank 0"), std::string::npos) << message;
  kill(other, SIGKILL);
  wait_for(other);
  close(taken[0]);
  close(taken[1]);
}

// Another user reaches the socket, and is hung up on before rank 0 has said a word.
TEST(Rendezvous, TellsOtherUsersNothing) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string job = unique_job();
  const auto join = [&](int rank) { init(options_for(job, rank, 2)); };
  const pid_t host = fork_rank(0, join);
  const std::string door = door_of(host);
  const pid_t other = fork_rank(1, [&](int) {
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    const auto link = detail::connect_to(door);
    ASSERT_TRUE(link);
    // Rank 0 may have hung up already.
    link->send(detail::JoiningSide({"rank", "", 0, ""}).greeting());
    EXPECT_FALSE(link->receive(Deadline(std::chrono::seconds(30))));
    EXPECT_FALSE(link->open());
  });
  EXPECT_EQ(wait_for(other), 0);
  EXPECT_EQ(wait_for(fork_rank(1, join)), 0);
  EXPECT_EQ(wait_for(host), 0);
}

}  // namespace
}  // namespace trireme
