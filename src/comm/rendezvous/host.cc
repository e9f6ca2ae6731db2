#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "comm/fixed_text.h"
#include "comm/rendezvous/accept_pause.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/remarks.h"
#include "comm/rendezvous/welcome.h"
#include "comm/shm/control.h"
#include "comm/shm/segment.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/machine.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kStrangerPatience{5000};  // for a connection that does not go on talking
constexpr std::size_t kMostComers = 64;          // at once; more wait in the kernel's queue

// Rank 0's side of the meeting: several conversations at once, so that nobody can hold up the
// others by not talking.
class Host {
 public:
  Host(const RendezvousOptions& options, std::optional<Listener> listener)
      : options_(options),
        deadline_(options.timeout),
        listener_(std::move(listener)),
        offer_(options.kernel_copy),
        hello_(make_hello(options.identity)),
        members_(index(options.identity.size)) {}

  Membership run() {
    while (admitted_ + 1 < options_.identity.size) {
      if (deadline_.passed()) {
        throw CommError(CommError::Reason::kRendezvousTimeout, -1, timeout_message());
      }
      poll_once();
    }
    return welcome_everyone();
  }

 private:
  enum class Stage { kGreeting, kIntroduction };
  struct Conversation {
    Channel channel;
    Stage stage = Stage::kGreeting;
    Greeting greeting{};
    Challenge challenge{};
    Deadline patience{kStrangerPatience};
  };
  struct Member {
    Channel channel;
    Hello hello{};
    MemoryProbe probe{};
    FileDescriptor life;
  };

  void poll_once() {
    const bool takes_more = talks_.size() < kMostComers && pause_.over();
    std::vector<pollfd> entries{{takes_more ? listener_->fd() : -1, POLLIN, 0}};
    for (const Conversation& talk : talks_) {
      entries.push_back({talk.channel.fd(), POLLIN, 0});
    }
    for (const Member& member : members_) {
      // poll skips the negative descriptor of a rank that is not here yet.
      entries.push_back({member.channel.valid() ? member.channel.fd() : -1, POLLIN, 0});
    }
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::min<std::int64_t>(deadline_.left().count() + 1, 100)));
    forget_lost_members(entries);
    std::vector<Conversation> open;
    for (std::size_t i = 0; i < talks_.size(); ++i) {
      const bool goes_on =
          entries[1 + i].revents == 0 ? !talks_[i].patience.passed() : listen_to(talks_[i]);
      if (goes_on) {
        open.push_back(std::move(talks_[i]));
      }
    }
    talks_ = std::move(open);
    for (std::size_t turn = 0; turn < kMostComers && talks_.size() < kMostComers && pause_.over();
         ++turn) {
      auto channel = listener_->accept();
      if (!channel) {
        if (pause_.failed(errno)) {
          remarks_.warn(concat("rank 0 has no file descriptors left for joining ranks (",
                               errno_text(errno),
                               "): raise the limit (ulimit -n)"));
        }
        break;
      }
      // Other users of the machine can reach the socket, and are told nothing.
      if (channel->peer().uid != geteuid()) {
        remarks_.warn(concat("rank 0 of ",
                             hello_.size,
                             " (pid ",
                             hello_.pid,
                             ") refused pid ",
                             channel->peer().pid,
                             ": it belongs to user ",
                             channel->peer().uid,
                             " and rank 0 to user ",
                             geteuid()));
        continue;
      }
      talks_.push_back({std::move(*channel)});
    }
  }

  // An admitted rank says nothing until everyone is here: whatever comes means that it is gone.
  void forget_lost_members(const std::vector<pollfd>& entries) {
    const std::size_t first = entries.size() - members_.size();
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (entries[first + rank].revents != 0) {
        remarks_.add(concat(name_of(members_[rank].hello), " joined and then ended"));
        members_[rank] = {};
        --admitted_;
      }
    }
  }

  // The next message of a conversation; false when the conversation is over.
  bool listen_to(Conversation& talk) {
    const Deadline now(Milliseconds(0));
    if (talk.stage == Stage::kGreeting) {
      if (!talk.channel.receive(&talk.greeting, sizeof(talk.greeting), nullptr, now) ||
          !speaks_our_protocol(talk.greeting)) {
        return refuse(talk, nullptr, "it speaks another version of the rendezvous protocol");
      }
      talk.challenge = make_challenge(talk.greeting, options_.identity.token);
      talk.stage = Stage::kIntroduction;
      return talk.channel.send(&talk.challenge, sizeof(talk.challenge), {}, now);
    }
    Introduction<LocalHello> introduction{};
    std::vector<FileDescriptor> fds;
    if (!talk.channel.receive(&introduction, sizeof(introduction), &fds, now)) {
      remarks_.add(concat("a process (pid ",
                          talk.channel.peer().pid,
                          ") broke off before it proved that it knows the job's token"));
      return false;
    }
    const Hello& hello = introduction.said.hello;
    if (!introduction_is_genuine(
            introduction, talk.greeting, talk.challenge, options_.identity.token)) {
      return refuse(talk, &hello, "it does not know the token of this job (TRIREME_TOKEN)");
    }
    if (const auto reason = objection(hello_, hello)) {
      return refuse(talk, &hello, *reason);
    }
    if (fds.size() != 1) {
      return refuse(talk, &hello, "it sent no handle of its process");
    }
    Member& place = members_[index(hello.rank)];
    if (place.channel.valid()) {
      return refuse(talk,
                    &hello,
                    concat("rank ",
                           hello.rank,
                           " is already taken by pid ",
                           place.hello.pid,
                           ": start every rank once"));
    }
    const Verdict admitted{1, {}};
    if (!talk.channel.send(&admitted, sizeof(admitted), {}, now)) {
      return false;
    }
    place = {std::move(talk.channel), hello, introduction.said.probe, std::move(fds.front())};
    ++admitted_;
    return false;
  }

  // `hello` is null where it has not said who it is.
  bool refuse(Conversation& talk, const Hello* hello, const std::string& why) {
    const std::string who = hello == nullptr
                                ? concat("a process (pid ", talk.channel.peer().pid, ")")
                                : name_of(*hello);
    const std::string message =
        concat("rank 0 of ", hello_.size, " (pid ", hello_.pid, ") refused ", who, ": ", why);
    remarks_.warn(message);
    const Verdict verdict = refusal(message);
    talk.channel.send(&verdict, sizeof(verdict), {}, Deadline(Milliseconds(0)));
    return false;
  }

  std::string timeout_message() const {
    std::string missing;
    for (int rank = 1; rank < options_.identity.size; ++rank) {
      if (!members_[index(rank)].channel.valid()) {
        missing += concat(missing.empty() ? "" : ", ", rank);
      }
    }
    const std::string text =
        concat("rendezvous timed out after ",
               deadline_.elapsed_seconds(),
               " s: ",
               admitted_ + 1,
               " of ",
               options_.identity.size,
               " ranks met, missing: ",
               missing,
               "; check that every rank was started with the same job (TRIREME_JOB)");
    return text + remarks_.text();
  }

  Membership welcome_everyone() {
    const int size = options_.identity.size;
    Membership membership;
    membership.rank = 0;
    membership.size = size;
    membership.stage_bytes = options_.stage_bytes;
    membership.first_rank = options_.first_rank;
    members_[0].hello = hello_;
    members_[0].probe = offer_.probe();
    members_[0].life = open_own_life();

    std::array<std::uint64_t, std::size(Hello{}.cpus)> cpus{};
    for (const Member& member : members_) {
      for (std::size_t word = 0; word < cpus.size(); ++word) {
        cpus[word] |= member.hello.cpus[word];
      }
      membership.pids.push_back(member.hello.pid);
    }
    membership.processors = 0;
    for (const std::uint64_t word : cpus) {
      membership.processors += std::popcount(word);
    }
    if (const int quota = cpu_quota(); quota > 0) {
      membership.processors = std::min(membership.processors, quota);
    }

    Welcome welcome{};
    welcome.processors = static_cast<std::uint32_t>(membership.processors);
    welcome.stage_bytes = options_.stage_bytes;
    welcome.ready = 1;
    try {
      membership.control = make_control(size);
    } catch (const MemoryError& error) {
      welcome.ready = 0;
      std::strncpy(welcome.message, error.what(), sizeof(welcome.message) - 1);
    }
    std::vector<int> lives;
    std::vector<MemoryProbe> probes;
    for (const Member& member : members_) {
      lives.push_back(member.life.get());
      probes.push_back(member.probe);
    }
    for (int rank = 1; rank < size; ++rank) {
      greet(members_[index(rank)], welcome, membership.control, probes, lives);
    }
    if (welcome.ready == 0) {
      throw MemoryError(concat("rank 0: ", welcome.message));
    }
    membership.kernel_copy = agree_on_kernel_copy(probes);
    for (Member& member : members_) {
      membership.lives.push_back(std::move(member.life));
      membership.links.push_back(std::move(member.channel));
    }
    return membership;
  }

  FileDescriptor make_control(int size) const {
    const std::size_t bytes = Control::bytes(size, options_.stage_bytes);
    FileDescriptor memory = create_memory(bytes);
    reserve_pages(memory.get(), 0, bytes);
    constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
    const auto first_count = env_integer(kEnvFirstCount, 0, kMost).value_or(0);
    const auto mapping = Mapping::map(memory, bytes);
    Control(mapping->data(), size, options_.stage_bytes)
        .begin_counting(static_cast<std::uint32_t>(first_count));
    return memory;
  }

  // A rank that is lost here is found by the first operation: its pidfd is with everyone else.
  void greet(const Member& member,
             const Welcome& welcome,
             const FileDescriptor& memory,
             const std::vector<MemoryProbe>& probes,
             const std::vector<int>& lives) const {
    std::vector<int> control;
    if (memory.valid()) {
      control.push_back(memory.get());
    }
    member.channel.send(&welcome, sizeof(welcome), control, deadline_);
    member.channel.send(probes.data(), probes.size() * sizeof(MemoryProbe), {}, deadline_);
    for (std::size_t first = 0; first < lives.size(); first += kHandlesPerMessage) {
      const std::size_t count = std::min(kHandlesPerMessage, lives.size() - first);
      const auto number = static_cast<std::uint32_t>(count);
      member.channel.send(&number,
                          sizeof(number),
                          {lives.begin() + static_cast<std::ptrdiff_t>(first),
                           lives.begin() + static_cast<std::ptrdiff_t>(first + count)},
                          deadline_);
    }
  }

  // The first reason not to is everyone's. A rank that is lost here is found like above.
  KernelCopy agree_on_kernel_copy(const std::vector<MemoryProbe>& probes) const {
    KernelCopyReport agreed = try_kernel_copy(probes, 0, options_.first_rank);
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      KernelCopyReport report{};
      if (!members_[rank].channel.receive(&report, sizeof(report), nullptr, deadline_)) {
        copy_text(report.why_not,
                  concat("rank ", options_.first_rank + static_cast<int>(rank), " was lost"));
      }
      if (agreed.why_not[0] == '\0') {
        agreed = report;
      }
    }
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      members_[rank].channel.send(&agreed, sizeof(agreed), {}, deadline_);
    }
    return {probes, 0, agreed};
  }

  const RendezvousOptions& options_;
  Deadline deadline_;
  std::optional<Listener> listener_;  // none in a world of one rank
  MemoryOffer offer_;
  Hello hello_;
  std::vector<Member> members_;  // by rank; [0] stays without a channel
  std::vector<Conversation> talks_;
  AcceptPause pause_;
  Remarks remarks_;
  int admitted_ = 0;
};

}  // namespace

Membership host_world(const RendezvousOptions& options) {
  if (options.identity.size == 1) {
    return Host(options, std::nullopt).run();
  }
  auto listener = Listener::listen(options.name);
  if (!listener) {
    const auto other = connect_to(options.name);
    throw CommError(CommError::Reason::kRefused,
                    0,
                    concat("rank 0 (pid ",
                           getpid(),
                           ") cannot open the rendezvous of this job: pid ",
                           other ? other->peer().pid : -1,
                           " is already rank 0 of it; start rank 0 once, end the one that is left "
                           "over, or give the new job another name (TRIREME_JOB)"));
  }
  return Host(options, std::move(listener)).run();
}

}  // namespace trireme::detail
