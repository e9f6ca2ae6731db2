#pragma once

#include <memory>
#include <string>

#include "comm/rendezvous/link.h"

namespace trireme::detail {

// What a joiner of a meeting decides for itself.
class JoinerPolicy {
 public:
  virtual ~JoinerPolicy() = default;

  virtual std::string self() const = 0;   // "rank 1 of 4 (pid 4711, /path/to/app)"
  virtual std::string host() const = 0;   // "rank 0"
  virtual std::string place() const = 0;  // where that listens
  // One attempt to reach it; null where `why` says why not.
  virtual std::unique_ptr<Link> knock(std::string* why) = 0;
  // What this process says of itself.
  virtual Message introduction() const = 0;
  // Now and then, with what keeps it waiting; throws where there is a reason not to go on.
  virtual void look(const std::string& trouble) = 0;

  // `genuine`: by somebody who knows the token.
  [[noreturn]] virtual void refused(const std::string& text, bool genuine) const = 0;
  [[noreturn]] virtual void timed_out(const std::string& trouble) = 0;
};

// Tries until the host has admitted this process. A host that breaks off is tried again.
std::unique_ptr<Link> join_meeting(JoinerPolicy& policy,
                                   const Pass& pass,
                                   Milliseconds pause,
                                   const Deadline& deadline);

}  // namespace trireme::detail
