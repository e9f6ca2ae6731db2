#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// What launchers say to each other. The first four are the admission, see fleet_admission.h.
enum class LauncherWord : std::uint32_t {
  kHello = 1,
  kChallenge,
  kProof,
  kVerdict,
  kStart,      // machine 0: everyone is here, this is the job
  kCancelled,  // machine 0: there will be no job
  kHeartbeat,  // I am alive
  kEvent,      // something that ends the job, see job_event.h
  kSilence,    // machine 0: a machine is not heard of
  kHeard,      // machine 0: it is heard of again
  kDone,       // all my ranks have ended
  kFinished    // machine 0: all ranks of all machines have ended
};

struct LauncherMessage {
  LauncherWord kind = LauncherWord::kHello;
  std::string body;
};

// A connection to another launcher that carries messages. Never blocks: what cannot be sent yet
// waits here.
class LauncherLink {
 public:
  LauncherLink() = default;
  LauncherLink(FileDescriptor fd, std::size_t longest_body);

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  // Why it is no longer open, for people; empty where the other end simply closed it.
  const std::string& why_closed() const { return why_closed_; }
  void set_longest_body(std::size_t bytes) { longest_body_ = bytes; }

  void send(LauncherWord kind, std::string_view body = {});
  // Sends what can be sent now.
  void flush();
  bool all_sent() const { return outgoing_.empty(); }
  // The events to poll for.
  short events() const;

  // The next message that has come whole.
  std::optional<LauncherMessage> next();
  // Whatever is sent after this is lost; the other end sees the end of the stream.
  void finish_sending();
  void close(const std::string& why = {});

 private:
  void read_some();

  FileDescriptor fd_;
  std::size_t longest_body_ = 0;
  std::string incoming_;
  std::string outgoing_;
  std::string why_closed_;
};

}  // namespace trireme::detail
