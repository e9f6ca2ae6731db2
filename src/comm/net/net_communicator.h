#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/net/net_call.h"
#include "comm/net/news_board.h"
#include "comm/net/wire.h"
#include "comm/operation_queue.h"
#include "comm/rendezvous/member.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

struct NetOptions {
  std::vector<Member> members;  // of the transport's world, by rank
  std::vector<int> ranks;       // which of them, in order
  std::uint32_t channel = 0;    // tells communicators over one transport apart
  Algorithm algorithm = Algorithm::kAutomatic;
  int sum_group = 1;
  QueueOptions queue;
};

// Ranks that reach each other through messages. The channel 0 of a transport also carries the news
// of ranks that leave or fail; communicators that are parts of another have other channels.
class NetCommunicator final : public Communicator, public QueueHost {
 public:
  NetCommunicator(std::shared_ptr<Transport> transport, NetOptions options);
  NetCommunicator(const NetCommunicator&) = delete;
  NetCommunicator& operator=(const NetCommunicator&) = delete;
  ~NetCommunicator() override;

  int rank() const override { return wire_.rank(); }
  int size() const override { return wire_.size(); }
  // Of this rank's machine; given by whoever makes the world.
  void set_machine(std::unique_ptr<Communicator> machine) { machine_ = std::move(machine); }
  Communicator& machine() override { return *machine_; }
  bool one_machine() const override { return false; }
  int sum_group() const override { return options_.sum_group; }
  SharedBuffer allocate(std::size_t bytes) override;
  std::unique_ptr<Window> expose(const std::byte* data, std::size_t bytes) override;
  CommUse use() const override;
  void abort(const std::string& reason) override { queue_->abort(reason); }

  // An operation that is a part of another: `outer` is what the user called.
  Work submit_as(Operation operation, const CallFacts& outer);
  Work submit(Operation operation) override;

  // --- for the communicator that this one is a part of

  std::string name(int rank) const override;
  bool pump() override;
  std::optional<CommError> loss(const std::vector<int>& missing) override;
  void spread(const CommError& error) override;
  // What this rank did last, where that is not an operation of this communicator.
  void set_last(std::function<std::string()> last) { last_ = std::move(last); }
  // The world has ended: nothing is moved any more, and nobody says goodbye.
  void abandon();
  // The same in the middle of something, that nobody knows of: says goodbye, where that can be done
  // without moving anything else.
  void break_off();
  // Says goodbye; what the destructor does.
  void finish();

 private:
  class PrivateBuffer;

  void rest(Milliseconds most) override { wire_.transport().rest(most); }
  void wake() override { wire_.transport().wake(); }
  std::string last_operations() const override;

  void tell(const CommError& error);
  Work issue(Operation operation, std::optional<CallFacts> outer);
  Steps run(std::unique_ptr<NetCall> call, Announcing announcing);
  Steps steps_for_large(NetCall& call, AllAnnounced& announced);
  Steps send(const Operation& operation);
  Steps recv(const Operation& operation);
  Algorithm algorithm_for(const Operation& operation) const;

  NetOptions options_;
  std::shared_ptr<Transport> transport_;
  Wire wire_;
  AnnouncementPool pool_;
  NameOf name_;
  // By rank: when this was first noticed.
  std::vector<Clock::time_point> lost_since_;
  std::vector<Clock::time_point> left_since_;
  const pid_t owner_;  // the process that built it
  std::unique_ptr<NewsBoard> control_;
  std::shared_ptr<OperationQueue> queue_;
  std::unique_ptr<Communicator> machine_;
  std::shared_ptr<std::atomic<std::int64_t>> window_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  LastCall last_issued_;
  std::function<std::string()> last_ = [this] {
    return concat(last_issued_.text(), ", completed #", queue_->completed());
  };
  bool abandoned_ = false;
  bool finished_ = false;
};

// An error of the world, for the communicator of this rank's machine: it blames a rank by its
// number there, or none where that is elsewhere.
CommError error_inside_machine(const CommError& error,
                               const std::vector<Member>& members,
                               int rank);

}  // namespace trireme::detail
