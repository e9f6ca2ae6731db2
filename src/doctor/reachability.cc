#include "doctor/reachability.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "comm/rendezvous/link.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kBetweenAttempts{200};

Attempt attempt_of(int error) {
  switch (error) {
    case 0:
      return {Reach::kConnected, ""};
    case ECONNREFUSED:
      return {Reach::kRefused, errno_text(error)};
    case ETIMEDOUT:
      return {Reach::kTimedOut, errno_text(error)};
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
      return {Reach::kNoRoute, errno_text(error)};
    default:
      return {Reach::kOther, errno_text(error)};
  }
}

// 0 or an errno value.
int connect_within(const SocketAddress& address, Milliseconds limit) {
  const FileDescriptor socket = begin_connecting(address);
  if (!socket.valid()) {
    return errno;
  }
  const bool decided = wait_for(socket.get(), POLLOUT, Deadline(limit));
  return decided ? connecting_result(socket) : ETIMEDOUT;
}

}  // namespace

Attempt try_connect(const MeetingPlace& place, Milliseconds limit) {
  std::vector<SocketAddress> addresses;
  try {
    addresses = resolve(place);
  } catch (const ConfigError& error) {
    return {Reach::kNotResolved, error.what()};
  }
  const Deadline deadline(limit);
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    const int result = connect_within(address, deadline.left());
    // Of a name's several addresses the one that got furthest says most.
    if (result == 0 || error == EADDRNOTAVAIL || result == ECONNREFUSED) {
      error = result;
    }
    if (error == 0) {
      break;
    }
  }
  return attempt_of(error);
}

Attempt wait_for_listener(const MeetingPlace& place, const Deadline& deadline) {
  for (;;) {
    Attempt attempt =
        try_connect(place, std::clamp(deadline.left(), Milliseconds(1), Milliseconds(3000)));
    if (attempt.reach != Reach::kRefused || deadline.passed()) {
      return attempt;
    }
    std::this_thread::sleep_for(std::min(kBetweenAttempts, deadline.left()));
  }
}

Finding judge_attempt(const MeetingPlace& place, const Attempt& attempt) {
  const std::string where = place.text();
  const auto failed = [&](const char* what, std::string advice) {
    return problem(
        "rendezvous", concat(where, " ", what, " (", attempt.reason, ")"), std::move(advice));
  };
  switch (attempt.reach) {
    case Reach::kConnected:
      return {"rendezvous", where + " answers"};
    case Reach::kNotResolved:
      return failed(
          "has no address",
          concat("check the name {} (getent hosts {}), or give machine 0's address as a number",
                 {place.host, place.host}));
    case Reach::kRefused:
      return failed("refuses: nothing listens there",
                    "start the same command with --node-rank 0 on that machine first, with the "
                    "same port; a firewall that rejects looks the same");
    case Reach::kTimedOut:
      return failed("does not answer",
                    concat("open TCP port {} in machine 0's firewall, and check that {} is its "
                           "address on a network that both machines share",
                           {place.port, place.host}));
    case Reach::kNoRoute:
      return failed("cannot be reached",
                    "check cables, routes (ip route get ADDRESS) and that both machines are in "
                    "the same network");
    case Reach::kOther:
      break;
  }
  return failed("could not be reached", "check address, port and firewall");
}

}  // namespace trireme::detail
