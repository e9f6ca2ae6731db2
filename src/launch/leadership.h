#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launch/etcd_client.h"
#include "launch/lease_clock.h"

namespace trireme::detail {

// What a store knows of a job.
struct JobRecord {
  std::string job;  // its name, which no other has
  std::string version;
  // Flags that are the same on all machines, and their values.
  std::vector<std::pair<std::string, std::string>> settings;
  std::int64_t generation = 0;  // how many leaders it has had
  std::vector<int> ranks;       // of each machine when it began; empty: it has not
};

struct Leader {
  int machine = 0;
  std::string host;       // its name, for messages
  std::string place;      // "HOST:PORT" where it listens for the others
  std::string candidacy;  // which nobody else has
};

// Note [leading]
// One launcher of a job decides about it, and which one that is, the store decides. Two keys:
//
//   /trireme/NAME/leader   who leads; under a lease, which the leader renews
//   /trireme/NAME/job      the JobRecord; under a longer one, so that nothing is left for good
//
// Whoever finds no leader puts itself there, in one transaction that demands that there is still
// none and that the record is the one it has read, and counts the generation up. etcd takes the
// leader's key away when the lease has not been renewed for its time. Before that the leader, which
// counts from when it sent the last renewal that was confirmed, an eighth less, and by its own
// clock, has stopped deciding, and everybody's ranks have ended (Note [leases] in fleet_lease.cc).
// So there is never a second one, whatever is stopped or cut off; nothing is assumed but that
// clocks run about as fast as each other.
//
// Asks the store in a thread of its own: it may take its time.
class Leadership {
 public:
  struct Options {
    std::string name;          // of the job in the store
    JobRecord alike;           // version and settings, which the record must have as well
    std::int64_t seconds = 0;  // of the leader's lease
    std::int64_t memory = 0;   // of the record's
    Milliseconds pause{0};     // between looks at the store, while there is no leader
  };
  Leadership(Options options, EtcdClient client);
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;
  // A leader's job is over: nothing is left of it in the store, if that can be reached.
  ~Leadership();

  // From now on, until `rest`: finds who leads, or does. `self` without a candidacy. `job`: the one
  // that this launcher was in, and nothing else will do; empty: whatever is there. The lead that it
  // had is given up: its ranks, and those of whoever followed, have ended.
  void seek(Leader self, const std::string& job);
  // Seeks again, where a lead that it had got meanwhile is lost.
  void seek_on();
  // The lead is given up and the job goes on: another may lead at once, or, where somebody's ranks
  // may still run, when the lease is over.
  void hand_over(bool at_once);
  // It has found the leader, and follows.
  void rest();

  struct View {
    std::optional<Leader> leader;  // as the store has it
    bool leads = false;            // it is this launcher
    std::optional<JobRecord> job;
    std::string refusal;  // why this launcher is not of that job; for good
    std::string trouble;  // what keeps the store from answering; for now, unless:
    bool is_lasting = false;
  };
  View view() const;
  // This launcher leads until then, whatever happens; the past where it does not.
  LeaseClock::time_point leads_until() const;
  // Writes down that the job begins with these ranks. False where it has lost the lead.
  bool begin_job(const std::vector<int>& ranks);
  // Of this machine, as the store sees it; waits for it. Empty where it does not answer by then.
  std::string own_address(const Deadline& deadline, const std::function<void()>& look);

 private:
  enum class Aim { kNone, kSeek, kLead, kHandOver };

  void run();
  void turn();
  void look();
  void stand(const EtcdClient::Entry& record, const JobRecord& job);
  void renew();
  void lose();
  void give_away();
  void revoke(std::int64_t& lease);
  void write_down();
  std::string key(const char* what) const;
  Milliseconds renewal_period() const { return Milliseconds(options_.seconds * 1000 / 6); }

  const Options options_;
  EtcdClient client_;  // of the thread, while that runs
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Aim aim_ = Aim::kNone;
  Leader self_;
  std::string job_;  // that this launcher was in
  bool hands_over_at_once_ = false;
  View view_;
  LeaseClock::time_point until_{};
  std::vector<int> beginning_;  // to be written down
  std::string own_address_;
  bool wake_ = false;
  bool stop_ = false;
  // Of the thread:
  std::int64_t lease_ = 0;
  std::int64_t record_lease_ = 0;
  std::int64_t record_changed_ = 0;
  LeaseClock::time_point record_renewed_{};
  std::thread thread_;
};

// What the store has under this name. Throws StoreTrouble.
std::optional<JobRecord> find_job(EtcdClient& client, const std::string& name);

// Why a job of these settings is not the one of the record; empty where it is.
std::string difference(const JobRecord& record, const JobRecord& alike);

}  // namespace trireme::detail
