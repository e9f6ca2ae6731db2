#include "doctor/reachability.h"

#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "trireme/core/file_descriptor.h"

namespace trireme {
namespace {

using detail::Attempt;
using detail::judge_attempt;
using detail::MeetingPlace;
using detail::Reach;
using detail::try_connect;
using detail::Verdict;
using detail::wait_for_listener;

// A port of this machine that is ours but that nobody listens on until `listen`.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    socklen_t size = sizeof(address);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }

  void listen(int backlog) const { EXPECT_EQ(::listen(socket_.get(), backlog), 0); }
  MeetingPlace place() const { return {"127.0.0.1", number_}; }

 private:
  FileDescriptor socket_;
  int number_ = 0;
};

TEST(Reachability, SomebodyListens) {
  const Port port;
  port.listen(4);
  EXPECT_EQ(try_connect(port.place()).reach, Reach::kConnected);
}

TEST(Reachability, NobodyListens) {
  const Port port;
  EXPECT_EQ(try_connect(port.place()).reach, Reach::kRefused);
  EXPECT_EQ(wait_for_listener(port.place(), Deadline(Milliseconds(50))).reach, Reach::kRefused);
}

TEST(Reachability, WaitsForWhoIsStartedLate) {
  const Port port;
  std::thread late([&] {
    std::this_thread::sleep_for(Milliseconds(100));
    port.listen(4);
  });
  const Attempt attempt = wait_for_listener(port.place(), Deadline(Milliseconds(10'000)));
  late.join();
  EXPECT_EQ(attempt.reach, Reach::kConnected) << attempt.reason;
}

TEST(Reachability, NobodyAnswers) {
  // The kernel drops what does not fit into the queue of a listener, as a firewall would.
  const Port port;
  port.listen(0);
  Attempt attempt;
  std::vector<FileDescriptor> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port.place().port));
    connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  attempt = try_connect(port.place(), Milliseconds(200));
  EXPECT_EQ(attempt.reach, Reach::kTimedOut) << attempt.reason;
}

TEST(Reachability, TheNameDoesNotResolve) {
  EXPECT_EQ(try_connect({"name.invalid", 29500}).reach, Reach::kNotResolved);
}

TEST(Reachability, EachWayToFailHasItsAdvice) {
  const MeetingPlace place{"bow", 29500};
  EXPECT_EQ(judge_attempt(place, {Reach::kConnected, ""}).verdict, Verdict::kOk);
  const auto advice = [&](Reach reach) {
    const auto finding = judge_attempt(place, {reach, "the reason"});
    EXPECT_EQ(finding.verdict, Verdict::kProblem);
    EXPECT_NE(finding.value.find("the reason"), std::string::npos) << finding.value;
    EXPECT_NE(finding.value.find("bow:29500"), std::string::npos) << finding.value;
    return finding.advice;
  };
  EXPECT_NE(advice(Reach::kNotResolved).find("name bow"), std::string::npos);
  EXPECT_NE(advice(Reach::kRefused).find("--node-rank 0"), std::string::npos);
  EXPECT_NE(advice(Reach::kTimedOut).find("port 29500 in machine 0's firewall"), std::string::npos);
  EXPECT_NE(advice(Reach::kNoRoute).find("route"), std::string::npos);
  EXPECT_FALSE(advice(Reach::kOther).empty());
}

}  // namespace
}  // namespace trireme
