#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "comm/rendezvous/net_socket.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme::testing {

// The members of an etcd, of Debian's etcd-server, each a process.
class EtcdMembers {
 public:
  using Words = std::vector<std::string>;
  using Start = std::function<std::unique_ptr<Program>(int member, const Words& command)>;

  // Why there can be none; nothing where there can. A test begins with
  //   if (const auto reason = EtcdMembers::unavailable()) GTEST_SKIP() << *reason;
  static std::optional<std::string> unavailable() {
    return run_program({"sh", "-c", "command -v etcd"}).code == 0
               ? std::nullopt
               : std::make_optional<std::string>("there is no etcd here: install etcd-server");
  }

  // One at each of these addresses.
  EtcdMembers(const std::vector<std::string>& hosts,
              int port,
              const Start& start,
              const Words& more = {},
              const std::string& scheme = "http")
      : start_(start) {
    std::string cluster;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      places_.push_back(detail::concat(hosts[i], ":", port + 2 * static_cast<int>(i)));
      peers_.push_back(
          detail::concat("http://", hosts[i], ":", port + 2 * static_cast<int>(i) + 1));
      cluster += detail::concat(i == 0 ? "" : ",", "m", i, "=", peers_.back());
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const std::string url = scheme + "://" + places_[i];
      Words command = {"env", "ETCD_UNSUPPORTED_ARCH=arm64", "etcd"};
      command.insert(command.end(), {"--name", detail::concat("m", i)});
      command.insert(command.end(), {"--data-dir", detail::concat(folder_.path(), "/", i)});
      command.insert(command.end(), {"--listen-client-urls", url, "--advertise-client-urls", url});
      command.insert(command.end(), {"--listen-peer-urls", peers_[i]});
      command.insert(command.end(), {"--initial-advertise-peer-urls", peers_[i]});
      command.insert(command.end(), {"--initial-cluster", cluster});
      command.insert(command.end(), {"--heartbeat-interval", "50", "--election-timeout", "500"});
      command.insert(command.end(), more.begin(), more.end());
      commands_.push_back(command);
      members_.push_back(start_(static_cast<int>(i), command));
    }
  }
  // On this machine.
  explicit EtcdMembers(int count, const Words& more = {}, const std::string& scheme = "http")
      : EtcdMembers(
            Words(static_cast<std::size_t>(count), "127.0.0.1"),
            free_ports(count),
            [](int, const Words& command) { return std::make_unique<Program>(command); },
            more,
            scheme) {}

  const std::vector<std::string>& places() const { return places_; }
  // As --store has them.
  std::string store() const {
    std::string text = "etcd://";
    for (std::size_t i = 0; i < places_.size(); ++i) {
      text += (i == 0 ? "" : ",") + places_[i];
    }
    return text;
  }
  void signal(int member, int number) const {
    kill(members_[static_cast<std::size_t>(member)]->pid(), number);
  }
  // One that has been killed, with what it has on its disk.
  void start_again(int member) {
    const auto i = static_cast<std::size_t>(member);
    members_[i]->wait();
    members_[i] = start_(member, commands_[i]);
  }

 private:
  // The first of 2 * `count` ports that are free: below those that the system gives to others.
  static int free_ports(int count) {
    for (int attempt = 0;; ++attempt) {
      const int first = 20000 + (getpid() * 31 + attempt * 97) % 12000;
      try {
        std::vector<FileDescriptor> taken;
        for (int port = first; port < first + 2 * count; ++port) {
          const detail::MeetingPlace here{"127.0.0.1", port};
          taken.push_back(detail::listen_at(detail::resolve(here), here));
        }
        return first;
      } catch (const std::exception&) {
        if (attempt == 100) {
          throw;
        }
      }
    }
  }

  Start start_;
  TemporaryFolder folder_;
  std::vector<Words> commands_;
  std::vector<std::string> places_;
  std::vector<std::string> peers_;
  std::vector<std::unique_ptr<Program>> members_;
};

}  // namespace trireme::testing
