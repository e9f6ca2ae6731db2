#include "launch/leadership.h"

#include <nlohmann/json.hpp>
#include <signal.h>

#include "comm/rendezvous/secrets.h"
#include "launch/job_setup.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

using RecordJson = nlohmann::json;

constexpr std::size_t kLongestField = 500;

std::string leader_text(const Leader& leader) {
  return RecordJson{{"machine", leader.machine},
                    {"host", leader.host},
                    {"place", leader.place},
                    {"candidacy", leader.candidacy}}
      .dump();
}

std::string record_text(const JobRecord& record) {
  return RecordJson{{"job", record.job},
                    {"version", record.version},
                    {"settings", record.settings},
                    {"generation", record.generation},
                    {"ranks", record.ranks}}
      .dump();
}

// What others have put there may be anything.
template <class Result, class Read>
Result read_entry(const std::string& text, const std::string& key, const Read& read) {
  try {
    return read(RecordJson::parse(text));
  } catch (const RecordJson::exception&) {
    throw StoreTrouble(concat("the store's key {} holds \"{}\", which no launcher of this version "
                              "has put there: give the job another name (--store "
                              "etcd://HOST:PORT/NAME), or remove the key (etcdctl del {})",
                              {key, printable(text, kLongestField), key}),
                       true);
  }
}

Leader read_leader(const std::string& text, const std::string& key) {
  return read_entry<Leader>(text, key, [](const RecordJson& json) {
    return Leader{json.at("machine").get<int>(),
                  printable(json.at("host").get<std::string>(), kLongestField),
                  printable(json.at("place").get<std::string>(), kLongestField),
                  json.at("candidacy").get<std::string>()};
  });
}

JobRecord read_record(const std::string& text, const std::string& key) {
  return read_entry<JobRecord>(text, key, [](const RecordJson& json) {
    return JobRecord{printable(json.at("job").get<std::string>(), kLongestField),
                     printable(json.at("version").get<std::string>(), kLongestField),
                     json.at("settings").get<std::vector<std::pair<std::string, std::string>>>(),
                     json.at("generation").get<std::int64_t>(),
                     json.at("ranks").get<std::vector<int>>()};
  });
}

std::string store_key(const std::string& name, const char* what) {
  return concat("/trireme/", name, "/", what);
}

}  // namespace

std::optional<JobRecord> find_job(EtcdClient& client, const std::string& name) {
  const std::string key = store_key(name, "job");
  const EtcdClient::Entry found = client.read({key})[0];
  return found.changed == 0 ? std::nullopt : std::make_optional(read_record(found.value, key));
}

std::string difference(const JobRecord& record, const JobRecord& alike) {
  if (record.version != alike.version) {
    return concat("it is of Trireme {}, and this is {}: install the same version on every machine",
                  {record.version, alike.version});
  }
  for (const auto& [flag, value] : alike.settings) {
    std::string theirs = "none";
    for (const auto& [other, text] : record.settings) {
      theirs = other == flag ? printable(text, kLongestField) : theirs;
    }
    if (theirs != value) {
      return concat("it has {} {}, and this launcher {}: give the same on every machine",
                    {flag, theirs, value});
    }
  }
  return "";
}

Leadership::Leadership(Options options, EtcdClient client)
    : options_(std::move(options)), client_(std::move(client)) {
  // Signals are for the launcher's loop.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Leadership::~Leadership() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const bool leads = view_.leads;
  if (aim_ != Aim::kHandOver || hands_over_at_once_) {
    revoke(lease_);
  }
  if (leads) {
    revoke(record_lease_);
  }
}

std::string Leadership::key(const char* what) const {
  return store_key(options_.name, what);
}

void Leadership::seek(Leader self, const std::string& job) {
  {
    const std::lock_guard lock(mutex_);
    self_ = std::move(self);
    job_ = job;
    aim_ = Aim::kSeek;
    view_ = {};
    until_ = {};
    beginning_.clear();
    wake_ = true;
  }
  changed_.notify_all();
}

void Leadership::seek_on() {
  const std::lock_guard lock(mutex_);
  if (aim_ == Aim::kLead && LeaseClock::now() >= until_) {
    view_ = {};
    aim_ = Aim::kSeek;
  }
  aim_ = aim_ == Aim::kNone ? Aim::kSeek : aim_;
  changed_.notify_all();
}

void Leadership::hand_over(bool at_once) {
  const std::lock_guard lock(mutex_);
  view_.leads = false;
  until_ = {};
  hands_over_at_once_ = at_once;
  aim_ = Aim::kHandOver;
  changed_.notify_all();
}

void Leadership::rest() {
  const std::lock_guard lock(mutex_);
  aim_ = aim_ == Aim::kSeek ? Aim::kNone : aim_;
}

Leadership::View Leadership::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

LeaseClock::time_point Leadership::leads_until() const {
  const std::lock_guard lock(mutex_);
  return until_;
}

bool Leadership::begin_job(const std::vector<int>& ranks) {
  std::unique_lock lock(mutex_);
  beginning_ = ranks;
  wake_ = true;
  changed_.notify_all();
  while (view_.leads && !beginning_.empty() && LeaseClock::now() < until_) {
    changed_.wait_for(lock, options_.pause);
  }
  return view_.leads && beginning_.empty();
}

std::string Leadership::own_address(const Deadline& deadline, const std::function<void()>& look) {
  while (!deadline.passed()) {
    look();
    std::unique_lock lock(mutex_);
    if (!own_address_.empty() || view_.is_lasting) {
      return own_address_;
    }
    changed_.wait_for(lock, options_.pause);
  }
  return "";
}

void Leadership::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Aim aim = aim_;
    wake_ = false;
    lock.unlock();
    std::string trouble;
    bool is_lasting = false;
    try {
      turn();
    } catch (const StoreTrouble& error) {
      trouble = error.what();
      is_lasting = error.is_lasting();
    }
    lock.lock();
    if (!client_.own_address().empty()) {
      own_address_ = client_.own_address();
    }
    view_.trouble = trouble;
    view_.is_lasting = is_lasting;
    changed_.notify_all();
    // A leader tries again soon where a renewal has failed: it has until its lease is over.
    const bool is_idle = aim == Aim::kNone && !own_address_.empty();
    const Milliseconds pause = is_idle                                ? Milliseconds(kForever)
                               : aim == Aim::kLead && trouble.empty() ? renewal_period()
                                                                      : options_.pause;
    changed_.wait_for(lock, pause, [&] { return stop_ || wake_ || aim != aim_; });
  }
}

void Leadership::turn() {
  Aim aim = Aim::kNone;
  {
    const std::lock_guard lock(mutex_);
    aim = aim_;
  }
  if (aim == Aim::kLead) {
    renew();
  } else if (aim == Aim::kHandOver) {
    give_away();
  } else if (aim == Aim::kSeek || own_address_.empty()) {
    look();
  }
}

void Leadership::look() {
  revoke(lease_);  // of a lead that is over, or of a candidacy whose end nobody knows
  const auto found = client_.read({key("leader"), key("job")});
  View view;
  if (found[0].changed != 0) {
    view.leader = read_leader(found[0].value, key("leader"));
  }
  if (found[1].changed != 0) {
    view.job = read_record(found[1].value, key("job"));
  }
  std::string was_in;
  {
    const std::lock_guard lock(mutex_);
    if (aim_ != Aim::kSeek) {
      return;
    }
    was_in = job_;
  }
  if (!was_in.empty() && (!view.job || view.job->job != was_in)) {
    view.refusal =
        concat("job {} has ended while this machine was not in it: {}",
               {was_in, view.job ? "the store has another by now" : "the store knows it no more"});
  } else if (const std::string why = view.job ? difference(*view.job, options_.alike) : "";
             !why.empty()) {
    view.refusal = concat(
        "the store has a job {} under the name \"{}\", and {}. If it is another job, give this one "
        "another name (--store etcd://HOST:PORT/NAME); if it was killed, its data vanish {} s "
        "later, or with etcdctl del --prefix {}",
        {view.job->job, options_.name, why, options_.memory, key("")});
  }
  {
    const std::lock_guard lock(mutex_);
    view_ = view;
  }
  if (!view.leader && view.refusal.empty()) {
    JobRecord next = view.job.value_or(options_.alike);
    next.job = next.job.empty() ? random_job_name() : next.job;
    ++next.generation;
    stand(found[1], next);
  }
}

// For leader, where there is none.
void Leadership::stand(const EtcdClient::Entry& record, const JobRecord& job) {
  Leader self;
  {
    const std::lock_guard lock(mutex_);
    self = self_;
  }
  self.candidacy = fresh_name();
  const auto sent = LeaseClock::now();
  const EtcdClient::Lease lease = client_.grant(options_.seconds);
  lease_ = lease.id;
  record_lease_ = client_.grant(options_.memory).id;
  const bool elected = client_.write(
      {{key("leader"), 0}, {key("job"), record.changed}},
      {{key("leader"), leader_text(self), lease_}, {key("job"), record_text(job), record_lease_}});
  if (!elected) {
    revoke(lease_);
    revoke(record_lease_);
    return;
  }
  record_renewed_ = sent;
  record_changed_ = client_.read({key("job")})[0].changed;
  const std::lock_guard lock(mutex_);
  if (aim_ == Aim::kSeek) {
    aim_ = Aim::kLead;
    view_ = {.leader = self, .leads = true, .job = job, .refusal = "", .trouble = ""};
    until_ = sent + Milliseconds(lease.seconds * 1000 * 7 / 8);
  }
}

void Leadership::renew() {
  const auto sent = LeaseClock::now();
  if (sent >= leads_until()) {
    lose();
    return;
  }
  const EtcdClient::Lease lease = client_.keep_alive(lease_);
  if (lease.seconds == 0) {
    lose();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (aim_ != Aim::kLead) {
      return;  // it has been given up meanwhile
    }
    until_ = sent + Milliseconds(lease.seconds * 1000 * 7 / 8);
  }
  write_down();
  if (sent - record_renewed_ > std::chrono::seconds(options_.memory) / 8) {
    client_.keep_alive(record_lease_);
    record_renewed_ = sent;
  }
}

void Leadership::write_down() {
  JobRecord job;
  {
    const std::lock_guard lock(mutex_);
    if (beginning_.empty()) {
      return;
    }
    job = *view_.job;
    job.ranks = beginning_;
  }
  const bool written = client_.write({{key("job"), record_changed_}},
                                     {{key("job"), record_text(job), record_lease_}});
  if (!written && client_.read({key("job")})[0].value != record_text(job)) {
    lose();  // somebody else has written
    return;
  }
  const std::lock_guard lock(mutex_);
  view_.job = job;
  beginning_.clear();
}

void Leadership::give_away() {
  bool at_once = false;
  {
    const std::lock_guard lock(mutex_);
    at_once = hands_over_at_once_;
  }
  if (at_once) {
    revoke(lease_);
  }
}

void Leadership::lose() {
  const std::lock_guard lock(mutex_);
  aim_ = Aim::kNone;
  view_.leads = false;
  until_ = {};
}

// What cannot be revoked runs out.
void Leadership::revoke(std::int64_t& lease) {
  try {
    if (lease != 0) {
      client_.revoke(lease);
    }
  } catch (const StoreTrouble&) {  // NOLINT(bugprone-empty-catch)
  }
  lease = 0;
}

}  // namespace trireme::detail
