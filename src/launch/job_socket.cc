#include "launch/job_socket.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme {
namespace detail {
namespace {

constexpr std::size_t kLongestRequest = 4096;
// One of ours writes at once; nobody may keep the launcher from its ranks.
constexpr suseconds_t kPatienceMicroseconds = 200'000;
constexpr time_t kSecondsForAnAnswer = 5;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

// Before the number of the launcher.
std::string name_of_jobs() {
  return concat("trireme/job/", getuid(), "/");
}

Address address_of(pid_t launcher) {
  const std::string text = concat(name_of_jobs(), launcher);
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // after a 0: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

// "12, 34": the launchers of this user that take requests.
std::string running_jobs() {
  std::string jobs;
  std::ifstream sockets("/proc/net/unix");  // abstract ones have an @ for their first byte
  const std::string name = concat(" @", name_of_jobs());
  for (std::string line; std::getline(sockets, line);) {
    // A connection that is under way has the name of its listener.
    const std::size_t at = line.find(name);
    const std::string job = at == std::string::npos ? "" : line.substr(at + name.size());
    if (!job.empty() && (", " + jobs + ",").find(concat(" ", job, ",")) == std::string::npos) {
      jobs += concat(jobs.empty() ? "" : ", ", job);
    }
  }
  return jobs;
}

void limit_waits(int socket, timeval limit) {
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

std::string received(int socket) {
  std::string text(kLongestRequest, '\0');
  const ssize_t got = recv(socket, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace

JobSocket::JobSocket(std::function<std::string(const std::string&)> answer)
    : answer_(std::move(answer)),
      listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const Address address = address_of(getpid());
  const auto* name = reinterpret_cast<const sockaddr*>(&address.name);
  TRIREME_CHECK(listener_.valid() && bind(listener_.get(), name, address.length) == 0 &&
                    listen(listener_.get(), 8) == 0,
                "the job's socket could not be opened: ",
                errno_text(errno));
}

void JobSocket::turn() {
  const FileDescriptor guest(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!guest.valid() || !is_of_this_user(guest.get())) {
    return;
  }
  limit_waits(guest.get(), {0, kPatienceMicroseconds});
  const std::string request = received(guest.get());
  if (!request.empty()) {
    const std::string text = answer_(request);
    [[maybe_unused]] const ssize_t sent = send(guest.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
}

}  // namespace detail

std::string ask_job(int launcher, const std::string& request) {
  const FileDescriptor job(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const detail::Address address = detail::address_of(launcher);
  const auto* name = reinterpret_cast<const sockaddr*>(&address.name);
  const bool found = job.valid() && connect(job.get(), name, address.length) == 0 &&
                     detail::is_of_this_user(job.get());
  const std::string why =
      found || errno == ECONNREFUSED ? "" : detail::concat(" (", detail::errno_text(errno), ")");
  const std::string jobs = found ? "" : detail::running_jobs();
  TRIREME_CHECK(
      found,
      "expected the process number of a launcher of yours whose number of ranks may "
      "change (--elastic MIN:MAX; it says so when it starts), found {}{}; {}",
      {launcher, why, jobs.empty() ? "no such job is running here" : "running are: " + jobs});
  detail::limit_waits(job.get(), {detail::kSecondsForAnAnswer, 0});
  send(job.get(), request.data(), request.size(), MSG_NOSIGNAL);
  const std::string answer = detail::received(job.get());
  TRIREME_CHECK(!answer.empty(),
                "launcher {} has not answered in {} s: it has just ended, or is stopped",
                {launcher, detail::kSecondsForAnAnswer});
  return answer;
}

}  // namespace trireme
