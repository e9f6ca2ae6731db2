// How the launchers of several machines come together, and who is not let in.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "comm/rendezvous/net_socket.h"
#include "launch/launchers.h"
#include "support/handshake_peer.h"
#include "support/processes.h"
#include "trireme/core/version.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using testing::expect_parts;
using testing::Finished;
using testing::free_port;
using testing::kPrintPlace;
using testing::kSecret;
using testing::Launchers;
using testing::Program;
using testing::trireme_binary;
using testing::value_of;

// Two processes of this machine talk over this port of the loopback address.
bool are_connected(int port) {
  std::istringstream lines(testing::read_file("/proc/net/tcp"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    constexpr const char* kEstablished = "01";
    if (state == kEstablished && local.size() == 13 &&
        std::stoi(local.substr(9), nullptr, 16) == port) {
      return true;
    }
  }
  return false;
}

TEST(FleetMeeting, ASignalWhileTheMachinesMeetEndsTheWait) {
  const Launchers machines(3);
  const auto first = machines.start({0, 1, "echo never"});
  const auto second = machines.start({1, 1, "echo never"});
  ASSERT_TRUE(testing::comes_true([&] { return are_connected(machines.port()); }));
  kill(first->pid(), SIGTERM);
  const Finished stopped = first->wait(milliseconds(30'000));
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
  expect_parts(stopped.err, {"stopped by signal 15"});  // it was there, and not just ended
  kill(second->pid(), SIGTERM);                         // too late, where it has heard of it
  const Finished result = second->wait(milliseconds(30'000));
  EXPECT_TRUE(result.code == 3 || result.code == 128 + SIGTERM) << result.code << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(FleetMeeting, RefusesWhoDoesNotBelongAndWaitsForWhoDoes) {
  struct Case {
    Launchers::Start wrong;
    std::string why;
  };
  const std::vector<Case> cases = {
      {{1, 1, "echo never", {}, "TRIREME_TOKEN=another secret"}, "its token is not that of"},
      {{1, 1, "echo never", {}, "TRIREME_TOKEN="}, "it has no token and machine 0 has one"},
      {{1, 1, "echo never", {}, kSecret, 4}, "--nnodes 4 and machine 0 with --nnodes 2"},
      {{2, 1, "echo never", {}, kSecret, 3}, "--nnodes 3 and machine 0 with --nnodes 2"},
      {{1, 1, "echo never", {"--encrypt"}}, "with --encrypt and machine 0 without"},
  };
  for (const Case& item : cases) {
    const Launchers machines(2);
    const auto first = machines.start({0, 1, "echo ran"});
    const Finished refused = machines.start(item.wrong)->wait(milliseconds(30'000));
    EXPECT_EQ(refused.code, 2) << refused.err;
    expect_parts(refused.err, {"refused", item.why});
    EXPECT_EQ(refused.out, "");
    const auto right = machines.start({1, 1, "echo ran"});
    const Finished result = first->wait(milliseconds(30'000));
    EXPECT_EQ(result.code, 0) << result.err;
    expect_parts(result.err, {"machine 0 (", ") refused ", item.why});
    EXPECT_EQ(right->wait(milliseconds(30'000)).code, 0);
  }
}

TEST(FleetMeeting, RefusesAMachineWhosePlaceIsTaken) {
  const Launchers machines(3);
  const auto first = machines.start({0, 1, "echo ran", {"--timeout", "10"}});
  const auto second = machines.start({1, 1, "echo ran"});
  const auto twice = machines.start({1, 1, "echo ran"});
  const Finished results[] = {second->wait(milliseconds(30'000)),
                              twice->wait(milliseconds(30'000))};
  // Whoever came second was refused; the other one is told that the job came to nothing.
  const Finished& refused = results[0].code == 2 ? results[0] : results[1];
  const Finished& admitted = results[0].code == 2 ? results[1] : results[0];
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"--node-rank 1 is already taken by "});
  EXPECT_EQ(admitted.code, 4) << admitted.err;
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 4);
  for (const std::string& text : {result.err, admitted.err}) {
    expect_parts(text, {"2 of 3 reached ", "missing: 2", "--node-rank 1 is already taken by "});
  }
  EXPECT_EQ(result.out + admitted.out + refused.out, "");
}

// What a launcher says of itself, written by hand.
struct HelloByHand {
  int machine = 1;
  std::string library = TRIREME_VERSION;
  std::string host = "by-hand";
  std::int64_t epoch = 0;

  std::string bytes() const {
    using testing::number;
    using testing::text;
    return text(library) + number(machine) + number(2) + number(1) + number(getpid()) + text(host) +
           number(0) + number(0) + number(0) +  // not elastic, no listener, not encrypted
           text("");                            // in no world before
  }
};

// Machine 0's answer to one that knows the token and says this; empty where it hangs up.
std::string answer_to(const Launchers& machines, const HelloByHand& hello) {
  const auto addresses = detail::resolve(detail::parse_meeting_place(machines.place()));
  FileDescriptor socket;
  for (int i = 0; i < 200 && !socket.valid(); ++i) {
    socket = detail::begin_connecting(addresses[0]);
    std::this_thread::sleep_for(milliseconds(20));
    if (detail::connecting_result(socket) != 0) {
      socket.reset();
    }
  }
  testing::JoinerByHand joiner(socket.get(), "a secret of the tests");
  EXPECT_TRUE(joiner.greet({.purpose = "launcher", .epoch = hello.epoch}));
  const auto verdict = joiner.introduce(hello.bytes());
  EXPECT_EQ(verdict.genuine, verdict.is_one);
  return verdict.admitted ? "admitted" : verdict.message;
}

// Many at once that never say a word: they are not waited for one after another.
TEST(FleetMeeting, ACrowdOfSilentStrangersDoesNotKeepAMachineOut) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo ran", {"--timeout", "15"}});
  const auto addresses = detail::resolve(detail::parse_meeting_place(machines.place()));
  std::vector<FileDescriptor> strangers;
  constexpr std::size_t kCrowd = 320;
  for (int i = 0; i < 5000 && strangers.size() < kCrowd; ++i) {
    FileDescriptor socket = detail::begin_connecting(addresses[0]);
    pollfd entry{socket.get(), POLLOUT, 0};
    if (poll(&entry, 1, 1000) == 1 && detail::connecting_result(socket) == 0) {
      strangers.push_back(std::move(socket));
    } else {
      std::this_thread::sleep_for(milliseconds(10));  // it does not listen yet
    }
  }
  ASSERT_EQ(strangers.size(), kCrowd);
  const auto second = machines.start({1, 1, "echo ran", {"--timeout", "15"}});
  const Finished result = first->wait(milliseconds(60'000));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(second->wait(milliseconds(60'000)).code, 0);
}

TEST(FleetMeeting, ALaterAttemptEndsTheMeetingOfAnEarlierOne) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo never"});
  EXPECT_EQ(answer_to(machines, {.epoch = 3}), "");
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 3) << result.err;
  expect_parts(result.err,
               {"attempt 3 at this job has begun (machine 1 (by-hand), pid ",
                "supersedes attempt 0 (TRIREME_EPOCH)"});
}

TEST(FleetMeeting, RefusesAnotherVersionAnotherAttemptAndAPlaceOutside) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo never", {"--timeout", "10"}});
  expect_parts(answer_to(machines, {.library = "9.8.7"}),
               {"it uses Trireme 9.8.7 and machine 0 uses ", "install the same version"});
  expect_parts(answer_to(machines, {.epoch = -1}),
               {"refused machine 1 (by-hand), pid ",
                "it belongs to attempt -1",
                "machine 0 to attempt 0",
                "it is left over"});
  for (const int outside : {-1, 0, 2}) {
    expect_parts(answer_to(machines, {.machine = outside}),
                 {"--node-rank " + std::to_string(outside) + " is outside the job"});
  }
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 4);
  expect_parts(result.err, {"missing: 1", "it uses Trireme 9.8.7", "is outside the job"});
}

TEST(FleetMeeting, StrangersDoNotDisturbTheMeeting) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo ran"});
  const auto stranger = testing::run_program({"python3",
                                              "-c",
                                              "import socket, time\n"
                                              "for attempt in range(200):\n"
                                              "  try:\n"
                                              "    s = socket.create_connection(('127.0.0.1', " +
                                                  std::to_string(machines.port()) +
                                                  "))\n"
                                                  "    break\n"
                                                  "  except OSError: time.sleep(0.02)\n"
                                                  "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
                                                  "assert s.recv(100) == b''\n"});
  EXPECT_EQ(stranger.code, 0) << stranger.err;
  const auto second = machines.start({1, 1, "echo ran"});
  EXPECT_EQ(first->wait(milliseconds(30'000)).code, 0);
  EXPECT_EQ(second->wait(milliseconds(30'000)).code, 0);
}

TEST(FleetMeeting, SaysOnceThatThereIsNoToken) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, kPrintPlace, {}, "TRIREME_TOKEN="});
  const auto second = machines.start({1, 1, kPrintPlace, {}, "TRIREME_TOKEN="});
  const Finished results[] = {first->wait(milliseconds(30'000)),
                              second->wait(milliseconds(30'000))};
  EXPECT_EQ(results[0].code, 0);
  EXPECT_EQ(results[1].code, 0);
  expect_parts(results[0].err, {"anyone who can reach " + machines.place(), "TRIREME_TOKEN"});
  EXPECT_EQ(results[1].err, "");
  // The ranks have one all the same.
  EXPECT_EQ(value_of(results[0].out, 0, "token").size(), 64U);
  EXPECT_EQ(value_of(results[0].out, 0, "token"), value_of(results[1].out, 1, "token"));
}

// "none" is no secret, so it must not be used as one.
TEST(FleetMeeting, NoneIsNoToken) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  std::ofstream(path) << "none\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const Launchers machines(3);
  const auto first = machines.start({0, 1, kPrintPlace, {}, "TRIREME_TOKEN=none"});
  const auto second = machines.start({1, 1, kPrintPlace, {}, "TRIREME_TOKEN="});
  const auto third = machines.start({2, 1, kPrintPlace, {"--token-file", path}});
  const Finished results[] = {first->wait(milliseconds(30'000)),
                              second->wait(milliseconds(30'000))};
  EXPECT_EQ(results[0].code, 0) << results[0].err;
  EXPECT_EQ(results[1].code, 0) << results[1].err;
  EXPECT_EQ(third->wait(milliseconds(30'000)).code, 0);
  expect_parts(results[0].err, {"anyone who can reach " + machines.place()});
  EXPECT_EQ(value_of(results[0].out, 0, "token").size(), 64U);
}

// What a stranger says is shown without what a terminal would obey.
TEST(FleetMeeting, AStrangersWordsAreShownHarmless) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo never", {"--timeout", "10"}});
  answer_to(machines, {.library = "9.8.7", .host = "\x1b]0;owned\x07\nforged: a line"});
  const Finished result = first->wait(milliseconds(30'000));
  expect_parts(result.err, {"\\x1b]0;owned\\x07\\x0aforged: a line"});
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("\nforged"), std::string::npos) << result.err;
}

TEST(FleetMeeting, TakesTheTokenFromAFileThatOthersCannotRead) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  std::ofstream(path) << "a secret of the tests\n";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const Launchers machines(2);
  const Finished refused =
      machines.start({0, 1, "echo never", {"--token-file", path}})->wait(milliseconds(30'000));
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"can be read by users other than its owner", "chmod 600 " + path});
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto first = machines.start({0, 1, "echo ran", {"--token-file", path}, "TRIREME_TOKEN="});
  const auto second = machines.start({1, 1, "echo ran"});  // has it in the variable
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(second->wait(milliseconds(30'000)).code, 0);
}

TEST(FleetMeeting, NamesTheMachinesThatDidNotCome) {
  const Launchers machines(3);
  const auto first = machines.start({0, 1, "echo never", {"--timeout", "8.5"}});
  const auto second = machines.start({1, 1, "echo never", {"--timeout", "20"}});
  for (Program* program : {first.get(), second.get()}) {
    const Finished result = program->wait(milliseconds(30'000));
    EXPECT_EQ(result.code, 4);
    EXPECT_EQ(result.out, "");
    expect_parts(result.err, {"in 8.5 s", "2 of 3 reached " + machines.place(), "missing: 2"});
  }
}

TEST(FleetMeeting, SaysThatMachineZeroDoesNotAnswer) {
  const Launchers machines(2);
  const Finished result =
      machines.start({1, 1, "echo never", {"--timeout", "0.5"}})->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 4);
  expect_parts(result.err, {"did not answer at " + machines.place(), "Connection refused"});
}

// What is wrong with the place itself: code 2 and a message of its own.
TEST(FleetMeeting, RefusesAPlaceThatCannotBe) {
  const Launchers machines(2);
  const FileDescriptor taken =
      detail::listen_at(detail::resolve(detail::parse_meeting_place(machines.place())),
                        detail::parse_meeting_place(machines.place()));
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--nnodes", "2", "--rendezvous", machines.place()}, "is in use"},
      {{"--nnodes", "2", "--rendezvous", "192.0.2.1:29500"},
       "192.0.2.1 does not belong to this machine"},
      {{"--nnodes", "2", "--rendezvous", "name.invalid:29500"},
       "\"name.invalid\" does not resolve"},
      {{"--nnodes", "2", "--node-rank", "1", "--rendezvous", "name.invalid:29500"},
       "\"name.invalid\" does not resolve"},
      {{"--nnodes", "2", "--rendezvous", "localhost"}, "expected HOST:PORT"},
      {{"--nnodes", "2", "--rendezvous", "localhost:0"}, "expected HOST:PORT"},
      {{"--nnodes", "2", "--rendezvous", "localhost:70000"}, "expected HOST:PORT"},
      {{"--nnodes", "2", "--rendezvous", "::1:29500"}, "in brackets"},
      {{"--nnodes", "2", "--rendezvous", ":29500"}, "expected HOST:PORT"},
      {{"--nnodes", "2"}, "expected --rendezvous"},
      {{"--nnodes", "2", "--node-rank", "2", "--rendezvous", machines.place()}, "found 2"},
      {{"--nnodes", "2", "--node-rank", "-1", "--rendezvous", machines.place()}, "\"-1\""},
      {{"--node-rank", "1"}, "0, as there is 1 machine (--nnodes)"},
      {{"--token-file", "/no/such/file"}, "/no/such/file"},
      {{"--nnodes", "0"}, "\"0\""},
      {{"--backend", "pigeon"}, "\"pigeon\""},
      {{"--algorithm", "nope"}, "--algorithm: expected one of auto, direct"},
      {{"--nnodes", "2", "--rendezvous", machines.place(), "--interfaces", "lo,nope0"},
       "\"nope0\""},
      {{"--nnodes", "2", "--rendezvous", machines.place(), "--interfaces", "nope0"}, "(lo"},
      {{"--sum-group", "0"}, "\"0\""},
      {{"--nnodes", "2", "--rendezvous", machines.place(), "--token-file", "/no/such/file"},
       "/no/such/file"},
  };
  for (const auto& [options, part] : cases) {
    std::vector<std::string> words = {trireme_binary(), "run", "-n", "1"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "echo", "never"});
    const Finished result = testing::run_program(words);
    EXPECT_EQ(result.code, 2) << part << ": " << result.err;
    EXPECT_EQ(result.out, "");
    expect_parts(result.err, {part});
  }
}

TEST(FleetMeeting, MeetsAtAnIpv6Address) {
  if (!std::filesystem::exists("/proc/net/if_inet6") ||
      testing::read_file("/proc/net/if_inet6").find("00000000000000000000000000000001") ==
          std::string::npos) {
    GTEST_SKIP() << "this machine has no IPv6 loopback address";
  }
  const std::string place = "[::1]:" + std::to_string(free_port());
  std::vector<std::unique_ptr<Program>> programs;
  for (const char* machine : {"0", "1"}) {
    programs.push_back(std::make_unique<Program>(std::vector<std::string>{trireme_binary(),
                                                                          "run",
                                                                          "--nnodes",
                                                                          "2",
                                                                          "--node-rank",
                                                                          machine,
                                                                          "--rendezvous",
                                                                          place,
                                                                          "-n1",
                                                                          "/bin/sh",
                                                                          "-c",
                                                                          kPrintPlace},
                                                 std::vector<std::string>{kSecret}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Finished result = programs[static_cast<std::size_t>(rank)]->wait(milliseconds(30'000));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(value_of(result.out, rank, "place").substr(0, 6), "[::1]:") << result.out;
  }
}

}  // namespace
}  // namespace trireme
