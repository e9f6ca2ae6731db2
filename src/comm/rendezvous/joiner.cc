#include "comm/rendezvous/joiner.h"

#include <algorithm>
#include <thread>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

class Joiner {
 public:
  Joiner(JoinerPolicy& policy, const Pass& pass, const Deadline& deadline)
      : policy_(policy), pass_(pass), deadline_(deadline) {}

  // Null where it is to be tried again.
  std::unique_ptr<Link> try_once() {
    auto link = policy_.knock(&trouble_);
    if (!link) {
      return nullptr;
    }
    if (const auto why = link->objection()) {
      policy_.refused(
          concat("{} found {} in place of {}: {}: give the job another name (TRIREME_JOB)",
                 {policy_.self(), link->peer(), policy_.host(), *why}),
          true);
    }
    JoiningSide side(pass_);
    link->send(side.greeting());
    const auto challenge = answer(*link, side);
    if (!challenge) {
      return nullptr;
    }
    if (!side.take_challenge(challenge->bytes)) {
      policy_.refused(not_the_host(), false);
    }
    // A host that has not proven itself still gets an answer, with nothing in it: the real one of
    // another token says then that it refuses this process, and both sides know.
    Message mine = policy_.introduction();
    std::vector<int> fds;
    fds.reserve(mine.fds.size());
    for (const FileDescriptor& fd : mine.fds) {
      fds.push_back(fd.get());
    }
    link->send(side.introduce(mine.bytes), side.host_is_genuine() ? fds : std::vector<int>{});
    const auto message = answer(*link, side);
    if (!message) {
      return nullptr;
    }
    const auto verdict = side.read_verdict(message->bytes);
    if (!verdict) {
      policy_.refused(not_the_host(), false);
    }
    if (!verdict->genuine) {
      policy_.refused(concat("{} does not trust what listens at {} as {}: it does not know the "
                             "token of this job (TRIREME_TOKEN)",
                             {policy_.self(), policy_.place(), policy_.host()}),
                      true);
    }
    link->trust(side.keys());
    return link;
  }

  const std::string& trouble() const { return trouble_; }

 private:
  // The host's next word; nothing where there is none. A refusal is the end, whenever it comes.
  std::optional<Message> answer(Link& link, const JoiningSide& side) {
    trouble_ = "it accepts connections but says nothing";
    auto message = link.receive(deadline_, [&] { policy_.look(trouble_); });
    if (!message) {
      trouble_ = link.open() ? trouble_
                 : link.why_closed().empty()
                     ? "it closed the connection before this process was admitted"
                     : link.why_closed();
      return std::nullopt;
    }
    const auto verdict = side.read_verdict(message->bytes);
    if (verdict && !verdict->admitted && !verdict->genuine) {
      policy_.refused(concat("{} was refused by what listens at {}: {}",
                             {policy_.self(), policy_.place(), verdict->message}),
                      false);
    }
    if (verdict && !verdict->admitted) {
      policy_.refused(verdict->message, true);
    }
    return message;
  }

  std::string not_the_host() const {
    return concat("what listens at {} is not {}, or is one of another version of Trireme",
                  {policy_.place(), policy_.host()});
  }

  JoinerPolicy& policy_;
  const Pass& pass_;
  const Deadline& deadline_;
  std::string trouble_ = "nothing listens there";
};

}  // namespace

std::unique_ptr<Link> join_meeting(JoinerPolicy& policy,
                                   const Pass& pass,
                                   Milliseconds pause,
                                   const Deadline& deadline) {
  Joiner joiner(policy, pass, deadline);
  for (;;) {
    if (auto link = joiner.try_once()) {
      return link;
    }
    if (deadline.passed()) {
      policy.timed_out(joiner.trouble());
    }
    policy.look(joiner.trouble());
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
  }
}

}  // namespace trireme::detail
