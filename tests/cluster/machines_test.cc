// The machines that the other tests of this folder run on: do they behave as machines?

#include "support/machines.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Machines;
using testing::run_program;

constexpr auto kDeadline = std::chrono::seconds(10);

// A socket on a machine, bound to its address on a rail.
class Socket {
 public:
  Socket(const Machines& machines, int machine, int rail, int type) {
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, machines.address(machine, rail).c_str(), &own.sin_addr);
    machines.inside(machine, [&] { file_ = socket(AF_INET, type | SOCK_CLOEXEC, 0); });
    TRIREME_CHECK(bind(file_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0,
                  "bind: ",
                  std::strerror(errno));
  }
  explicit Socket(int file) : file_(file) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(file_); }

  int file() const { return file_; }
  sockaddr_in name() const {
    sockaddr_in result = {};
    socklen_t size = sizeof(result);
    getsockname(file_, reinterpret_cast<sockaddr*>(&result), &size);
    return result;
  }
  // 0, or the errno of connect.
  int try_connect(const Socket& other) const {
    const sockaddr_in name = other.name();
    return connect(file_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 ? 0 : errno;
  }
  void connect_to(const Socket& other) const {
    const int reason = try_connect(other);
    TRIREME_CHECK(reason == 0, "connect: ", std::strerror(reason));
  }
  void send(const std::string& text) const {
    TRIREME_CHECK(
        ::send(file_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()),
        "send: ",
        std::strerror(errno));
  }
  // What arrives next, or "nothing".
  std::string receive() const {
    pollfd wanted = {file_, POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) != 1) {
      return "nothing";
    }
    std::array<char, 4096> buffer;
    const ssize_t size = recv(file_, buffer.data(), buffer.size(), 0);
    return size < 0 ? std::strerror(errno) : std::string(buffer.data(), size);
  }
  int error() const {
    int value = 0;
    socklen_t size = sizeof(value);
    getsockopt(file_, SOL_SOCKET, SO_ERROR, &value, &size);
    return value;
  }

 private:
  int file_ = -1;
};

// Datagrams between two machines over one rail.
struct Pair {
  Pair(const Machines& machines, int first, int second, int rail)
      : a(machines, first, rail, SOCK_DGRAM), b(machines, second, rail, SOCK_DGRAM) {
    a.connect_to(b);
    b.connect_to(a);
  }
  void expect_both_ways(const std::string& text) const {
    a.send(text + " there");
    EXPECT_EQ(b.receive(), text + " there");
    b.send(text + " back");
    EXPECT_EQ(a.receive(), text + " back");
  }
  // Nobody receives these: a later expect_both_ways would find them first.
  void send_in_vain() const {
    a.send("lost there");
    b.send("lost back");
  }
  Socket a;
  Socket b;
};

std::string queues(const Machines& machines, int machine, int rail) {
  return run_program({"tc",
                      "-n",
                      machines.host(machine),
                      "qdisc",
                      "show",
                      "dev",
                      "eth" + std::to_string(rail),
                      "root"})
      .out;
}

bool namespace_exists(const std::string& prefix) {
  return ("\n" + run_program({"ip", "netns", "list"}).out).find("\n" + prefix) != std::string::npos;
}

class MachinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable()) {
      GTEST_SKIP() << *reason;
    }
  }
};

TEST_F(MachinesTest, ReachEachOtherOverBothRails) {
  const Machines machines(2);
  EXPECT_NE(machines.address(0, 0), machines.address(0, 1));
  for (const int rail : {0, 1}) {
    Pair(machines, 0, 1, rail).expect_both_ways("rail " + std::to_string(rail));
  }
}

TEST_F(MachinesTest, ThreeReachEachOtherThroughTheSwitch) {
  if (const auto reason = Machines::unavailable("switch")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(3);
  const std::array<std::array<int, 2>, 3> pairs = {{{0, 1}, {0, 2}, {1, 2}}};
  for (const auto [first, second] : pairs) {
    for (const int rail : {0, 1}) {
      Pair(machines, first, second, rail).expect_both_ways("through the switch");
    }
  }
  // The link of one machine is its own: the other two do not notice.
  const Pair far(machines, 0, 2, 1);
  machines.cut(2);
  Pair(machines, 0, 1, 1).expect_both_ways("past the cut");
  far.send_in_vain();
  machines.mend(2);
  far.expect_both_ways("mended");
}

TEST_F(MachinesTest, AreSeparateFromTheHostAndFromEachOther) {
  const Machines machines(2);
  std::array<std::string, 2> network;
  for (const int machine : {0, 1}) {
    const Finished result =
        machines
            .run(
                machine,
                {"sh", "-c", "uname -n; echo $WHO; readlink /proc/self/ns/net; getent hosts $PEER"},
                {"WHO=somebody", "PEER=" + machines.host(1 - machine)})
            ->wait(kDeadline);
    std::istringstream lines(result.out);
    std::string host;
    std::string who;
    std::string peer_address;
    lines >> host >> who >> network[machine] >> peer_address;
    EXPECT_EQ(host, machines.host(machine)) << result.err;
    EXPECT_EQ(who, "somebody");
    EXPECT_EQ(peer_address, machines.address(1 - machine));
    EXPECT_NE(network[machine], std::filesystem::read_symlink("/proc/self/ns/net").string());
    machines.inside(machine, [&] {
      EXPECT_EQ(std::filesystem::read_symlink("/proc/thread-self/ns/net").string(),
                network[machine]);
    });
  }
  EXPECT_NE(network[0], network[1]);
}

TEST_F(MachinesTest, PassOnExitCodesAndSignals) {
  const Machines machines(2);
  EXPECT_EQ(machines.run(1, {"sh", "-c", "exit 7"})->wait(kDeadline).code, 7);
  const auto first = machines.run(0, {"sh", "-c", "echo ready; exec sleep 60"});
  const auto second = machines.run(0, {"sh", "-c", "echo ready; exec sleep 60"});
  const auto elsewhere = machines.run(1, {"sh", "-c", "echo ready; exec sleep 60"});
  for (const auto* program : {first.get(), second.get(), elsewhere.get()}) {
    ASSERT_TRUE(program->wait_for_output("ready"));
  }
  ::kill(first->pid(), SIGTERM);
  EXPECT_EQ(first->wait(kDeadline).code, 128 + SIGTERM);
  EXPECT_EQ(machines.processes(0), std::vector<pid_t>{second->pid()});
  machines.kill(0, SIGUSR1);
  EXPECT_EQ(second->wait(kDeadline).code, 128 + SIGUSR1);
  EXPECT_EQ(machines.processes(1), std::vector<pid_t>{elsewhere->pid()});
  const Finished late = elsewhere->wait(std::chrono::milliseconds(1));
  EXPECT_EQ(late.code, 128 + SIGKILL);
  EXPECT_NE(late.err.find("still running after 1 ms"), std::string::npos) << late.err;
}

TEST_F(MachinesTest, AreReachedByAddressAsARemoteShellWould) {
  const Machines machines(2);
  for (const int rail : {0, 1}) {
    const Finished result =
        machines
            .run(
                0,
                {Machines::script(), "rsh", "-x", machines.address(1, rail), "uname -n;", "exit 5"})
            ->wait(kDeadline);
    EXPECT_EQ(result.out, machines.host(1) + "\n") << result.err;
    EXPECT_EQ(result.code, 5);
  }
  const Finished unknown = run_program({Machines::script(), "rsh", "10.99.1.1", "true"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.err.find("no machine has the name or address 10.99.1.1"), std::string::npos);
}

TEST_F(MachinesTest, CountTheBytesOfPrograms) {
  const Machines machines(2);
  // 14 bytes of Ethernet, 20 of IP and 8 of UDP around each datagram, and nothing else on the wire.
  const auto on_the_wire = [](std::int64_t size) { return size + 14 + 20 + 8; };
  const Pair pair(machines, 0, 1, 1);
  pair.a.send(std::string(1000, 'x'));
  EXPECT_EQ(pair.b.receive().size(), 1000U);
  pair.b.send("abc");
  EXPECT_EQ(pair.a.receive(), "abc");
  EXPECT_EQ(machines.bytes(0, 1).sent, on_the_wire(1000));
  EXPECT_EQ(machines.bytes(1, 1).received, on_the_wire(1000));
  EXPECT_EQ(machines.bytes(1, 1).sent, on_the_wire(3));
  EXPECT_EQ(machines.bytes(0, 1).received, on_the_wire(3));
  EXPECT_EQ(machines.bytes(0, 0).sent, 0);
  EXPECT_EQ(machines.bytes(0, 0).received, 0);
}

TEST_F(MachinesTest, AreCutOffAndMendedBothWays) {
  if (const auto reason = Machines::unavailable("cut")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(2);
  const Pair rail0(machines, 0, 1, 0);
  const Pair rail1(machines, 0, 1, 1);
  machines.cut(1, "eth1");
  rail0.expect_both_ways("the other rail");
  rail1.send_in_vain();
  machines.cut(1);
  rail0.send_in_vain();
  machines.mend(1);
  rail0.expect_both_ways("mended");
  rail1.expect_both_ways("mended");
}

TEST_F(MachinesTest, ACutIsSilent) {
  if (const auto reason = Machines::unavailable("cut")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(2);
  const Socket listener(machines, 1, 0, SOCK_STREAM);
  ASSERT_EQ(listen(listener.file(), 1), 0);
  const Socket a(machines, 0, 0, SOCK_STREAM);
  a.connect_to(listener);
  const Socket b(accept(listener.file(), nullptr, nullptr));
  machines.cut(0);
  // Neither the connection nor one that is being made learns of it.
  a.send("kept");
  const Socket late(machines, 0, 0, SOCK_STREAM | SOCK_NONBLOCK);
  EXPECT_EQ(late.try_connect(listener), EINPROGRESS);
  pollfd events = {late.file(), POLLOUT, 0};
  EXPECT_EQ(poll(&events, 1, 50), 0);
  EXPECT_EQ(a.error(), 0);
  EXPECT_NE(
      run_program({"ip", "-n", machines.host(0), "link", "show", "eth0"}).out.find("LOWER_UP"),
      std::string::npos);
  // A neighbour that had to be asked for would be found missing after seconds, and reported.
  EXPECT_NE(run_program({"ip", "-n", machines.host(0), "neigh"}).out.find("PERMANENT"),
            std::string::npos);
  // Not lost, only late: TCP sends it again.
  machines.mend(0);
  EXPECT_EQ(b.receive(), "kept");
}

TEST_F(MachinesTest, LoseTheShareOfPacketsAskedFor) {
  if (const auto reason = Machines::unavailable("loss")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(2);
  const Pair pair(machines, 0, 1, 0);
  const int room = 4 << 20;
  for (const Socket* socket : {&pair.a, &pair.b}) {
    ASSERT_EQ(setsockopt(socket->file(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)), 0);
  }
  constexpr int kSent = 400;
  machines.loss(1, "25");
  for (int i = 0; i < kSent; ++i) {
    pair.a.send("x");
    pair.b.send("x");
  }
  machines.loss(1, "off");
  pair.a.send("end");
  pair.b.send("end");
  for (const Socket* socket : {&pair.a, &pair.b}) {
    int arrived = 0;
    std::string text = socket->receive();
    for (; text == "x"; text = socket->receive()) {
      ++arrived;
    }
    EXPECT_EQ(text, "end");
    // Seven standard deviations of sqrt(400 * 0.25 * 0.75) = 8.7 around 300.
    EXPECT_NEAR(arrived, 300, 61);
  }
}

TEST_F(MachinesTest, LimitWhatEveryInterfaceSends) {
  if (const auto reason = Machines::unavailable("rate")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(2);
  machines.rate("300mbit");
  for (const int machine : {0, 1}) {
    for (const int rail : {0, 1}) {
      EXPECT_NE(queues(machines, machine, rail).find("tbf"), std::string::npos);
      EXPECT_NE(queues(machines, machine, rail).find("rate 300Mbit"), std::string::npos);
    }
  }
  Pair(machines, 0, 1, 0).expect_both_ways("limited");
  machines.rate("off");
  EXPECT_EQ(queues(machines, 1, 1).find("tbf"), std::string::npos);
}

TEST_F(MachinesTest, DelayWhatAMachineSends) {
  if (const auto reason = Machines::unavailable("delay")) {
    GTEST_SKIP() << *reason;
  }
  const Machines machines(2);
  machines.delay(1, "20");
  EXPECT_NE(queues(machines, 1, 0).find("netem"), std::string::npos);
  EXPECT_NE(queues(machines, 1, 0).find("delay 20ms"), std::string::npos);
  EXPECT_EQ(queues(machines, 0, 0).find("netem"), std::string::npos);
  Pair(machines, 0, 1, 0).expect_both_ways("delayed");
  machines.delay(1, "off");
  EXPECT_EQ(queues(machines, 1, 0).find("netem"), std::string::npos);
}

TEST_F(MachinesTest, LeaveNothingBehind) {
  const std::string mark = testing::unique_mark();
  std::string name;
  std::unique_ptr<testing::Program> program;
  {
    const Machines machines(3);
    name = machines.name();
    EXPECT_TRUE(namespace_exists(name + "-2"));
    EXPECT_TRUE(namespace_exists(name + "-switch"));
    // A child of its own, in a session of its own: only the namespace still tells where it belongs.
    program = machines.run(2, {"sh", "-c", "setsid sleep 60 & echo ready; wait"}, {mark});
    ASSERT_TRUE(program->wait_for_output("ready"));
  }
  EXPECT_EQ(program->wait(kDeadline).code, 128 + SIGKILL);
  EXPECT_TRUE(testing::processes_with(mark).empty());
  EXPECT_FALSE(namespace_exists(name));
  EXPECT_FALSE(std::filesystem::exists("/etc/netns/" + name + "-0"));
  EXPECT_EQ(run_program({Machines::script(), "down", name}).code, 0);  // again is fine
}

TEST_F(MachinesTest, RemoveWhatAKilledTestHasLeft) {
  const pid_t dead = fork();
  if (dead == 0) {
    const Machines machines(2);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(dead, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::string left = "test-" + std::to_string(dead) + "-";
  ASSERT_TRUE(namespace_exists(left));
  const Machines machines(2);
  EXPECT_FALSE(namespace_exists(left));
  EXPECT_TRUE(namespace_exists(machines.name()));
}

TEST(MachinesScript, SaysWhatIsWrongWithACommand) {
  const Finished result = run_program({Machines::script(), "up", "a b", "2"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("not \"a b\""), std::string::npos) << result.err;
}

}  // namespace
}  // namespace trireme
