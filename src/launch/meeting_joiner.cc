#include "comm/rendezvous/joiner.h"
#include "comm/rendezvous/tcp_link.h"
#include "launch/fleet_meeting.h"
#include "launch/job_setup.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kLauncherRetryPause{100};
constexpr Milliseconds kTimeToSayUnanswered{5000};  // before saying that it does not answer
// The leader knows who is missing: its word is better than ours, when it comes in time.
constexpr Milliseconds kGraceForLeader{2000};

void look_for_signals(const MeetingOptions& options) {
  if (options.store != nullptr) {
    options.store->look();
  }
  if (const int number = take_ending_signal(*options.signals)) {
    throw stopped_by_signal(number);
  }
}

// The side of every machine but the leader.
class LauncherJoiner final : public JoinerPolicy {
 public:
  LauncherJoiner(const MeetingOptions& options, const Deadline& deadline)
      : options_(options), deadline_(deadline), hello_(make_machine_hello(options)) {}

  std::string self() const override { return hello_.name(); }
  std::string host() const override { return concat("the launcher of ", options_.leader_name()); }
  std::string place() const override { return options_.place.text(); }
  Message introduction() const override { return {pack_hello(hello_), {}}; }
  std::unique_ptr<Link> knock(std::string* why) override {
    return try_connect(
        options_.addresses, deadline_, [this] { look_for_signals(options_); }, why);
  }

  void look(const std::string& trouble) override {
    look_for_signals(options_);
    if (!said_ && deadline_.elapsed_seconds() * 1000 >= kTimeToSayUnanswered.count() &&
        !deadline_.passed()) {
      said_ = true;
      options_.say(concat("{} does not answer at {} yet ({}); trying for {} s in all",
                          {options_.leader_name(), place(), trouble, options_.timeout_seconds()}));
    }
  }

  [[noreturn]] void refused(const std::string& text, bool /*genuine*/) const override {
    throw ConfigError(text);
  }

  [[noreturn]] void timed_out(const std::string& trouble) override {
    throw MeetingFailed(
        kExitRendezvousTimedOut,
        concat("{} did not answer at {} in {} s: {}; check that --node-rank {} was started there, "
               "and that this machine can reach its address and port (firewall)",
               {options_.leader_name(),
                place(),
                options_.timeout_seconds(),
                trouble,
                options_.leader}));
  }

 private:
  const MeetingOptions& options_;
  const Deadline& deadline_;
  const MachineHello hello_;
  bool said_ = false;
};

// The leader's next word, which begins the job or says that there will be none.
LauncherMessage wait_for_start(Link& link, const MeetingOptions& options, const Deadline& grace) {
  const auto message = read_word(link.receive(grace, [&] { look_for_signals(options); }));
  if (!message && link.open()) {
    throw MeetingFailed(
        kExitRendezvousTimedOut,
        concat("{} at {} admitted this machine, but the others did not join within {} s",
               {options.leader_name(), options.place.text(), options.timeout_seconds()}));
  }
  if (!message && options.store != nullptr) {
    throw LeaderChanged();  // or it soon will have
  }
  if (!message) {
    throw MeetingFailed(kExitRankFailed,
                        concat("machine 0 at {} is gone: its launcher was killed or the machine "
                               "went down, before the job began",
                               {options.place.text()}));
  }
  if (message->kind == LauncherWord::kCancelled) {
    throw unpack_cancellation(message->body);
  }
  return *message;
}

}  // namespace

Roster join_launchers(const MeetingOptions& options) {
  const Deadline deadline(options.timeout);
  const Deadline grace(options.timeout + kGraceForLeader);
  LauncherJoiner policy(options, deadline);
  auto link = join_meeting(policy, options.pass(), kLauncherRetryPause, deadline);
  const LauncherMessage start = wait_for_start(*link, options, grace);
  Roster roster;
  int port = 0;
  TRIREME_CHECK(start.kind == LauncherWord::kStart && unpack_start(start.body, &roster, &port) &&
                    roster.ranks.size() == static_cast<std::size_t>(options.machines) &&
                    (!roster.joins || options.lease.count() > 0),
                options.leader_name(),
                " at ",
                options.place.text(),
                " did not say what the job is: install the same version of Trireme everywhere");
  roster.machine = options.machine;
  roster.leader = options.leader;
  if (!options.secret.empty()) {
    roster.token = token_from_secret(options.secret, roster.job);
  }
  // This machine has just reached the leader by this name.
  roster.rendezvous = MeetingPlace{options.place.host, port}.text();
  for (std::size_t machine = 0; machine < roster.ranks.size(); ++machine) {
    roster.links.push_back(static_cast<int>(machine) == options.leader
                               ? std::move(link)
                               : std::make_unique<TcpLink>());
  }
  return roster;
}

}  // namespace trireme::detail
