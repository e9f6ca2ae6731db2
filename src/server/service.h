#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "server/shard.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

// How gradients get to owners and weights to workers: messages between ranks, and a thread of each
// owner that takes what comes. It never waits for one worker while another has sent something.
//
// Note [two communicators]
// Messages of a pair of ranks arrive in the order they were sent. A rank is both an owner and a
// worker, and each of the two receives when it likes: gradients and weights therefore have a
// communicator each.
class Service {
 public:
  struct Places {
    int workers = 0;          // ranks 0 to workers - 1
    std::vector<int> owners;  // ranks that own something
  };
  // Collective.
  Service(Communicator& ranks, const ModelPlan& plan, Places places);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service();

  // The shard's: sends weights to a worker, which may be this rank. Does not block.
  void answer(int worker, std::shared_ptr<const Shard::Weights> weights);
  // The thread begins to take what is sent to this shard, which outlives this.
  void start(Shard& shard);

  // --- as a worker; all owners

  // `sums` are this rank's gradients, not changed before it returns.
  void push(Shard::PushHeader header,
            const std::vector<std::uint8_t>& used,
            const GradientSums& sums);
  // Weights that answer the last push.
  using Take = std::function<void(const OwnedPart& part, const ConstSpan& values)>;
  void pull(const Take& take);
  void say_goodbye();
  // All of them have weights of this version from now on.
  void set_version(std::int64_t version) { versions_.assign(versions_.size(), version); }

  // Waits until every worker has said goodbye.
  void finish();
  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Of rows, in place of a number of them: all.
  static constexpr std::int64_t kWhole = -1;
  static Span header_span(Shard::PushHeader& header) {
    return {&header, sizeof(header), Dtype::kUint8};
  }
  static Span integers(std::vector<std::int64_t>& numbers) {
    return {numbers.data(), static_cast<std::int64_t>(numbers.size()), Dtype::kInt64};
  }
  // What comes from one worker.
  struct Line {
    int worker = 0;
    Shard::PushHeader header;
    Shard::Push push;
    std::vector<std::int64_t> counts;  // of rows
    std::vector<Work> parts;           // of what comes next, but the last
    enum class Next { kHeader, kParts, kRows } next = Next::kHeader;
  };
  bool owns() const;
  void serve();
  void expect(Line& line, Work& work);
  bool take(Line& line, Work& work);  // false: it has left
  void expect_parts(Line& line, Work& work);
  bool expect_rows(Line& line, Work& work);  // false: there are none
  struct RowRun {
    std::span<const std::int64_t> rows;
    ConstSpan values;
  };
  RowRun rows_for(const GradientSums& sums, const OwnedPart& part) const;
  void push_rows(const GradientSums& sums, int owner, std::vector<Work>& sending);
  void pull_from(int owner, const Take& take);
  void take_rows(const OwnedPart& part, const ChangedRows& changed, const Take& take) const;
  void check_late();
  void rethrow();

  const int rank_;
  const ModelPlan& plan_;
  const Places places_;
  std::vector<OwnedParts> gradients_;  // by rank
  std::vector<OwnedParts> weights_;
  Shard* shard_ = nullptr;

  std::vector<std::int64_t> versions_;  // by owner: of the weights that this worker has
  std::vector<Shard::PushHeader> headers_;
  std::vector<std::vector<std::int64_t>> counts_;  // by owner: of rows that are sent
  device::Buffer scratch_;
  std::int64_t sent_bytes_ = 0;  // the worker's

  // The thread's. Before the communicators, whose operations use it.
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<Work> waits_;  // by line

  // Issued to by two threads: one at a time.
  std::mutex issue_;
  std::shared_ptr<Communicator> up_;    // gradients
  std::shared_ptr<Communicator> down_;  // weights

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::shared_ptr<const Shard::Weights> own_answer_;
  std::exception_ptr failure_;
  bool ends_ = false;
  bool served_ = true;  // the thread has nothing to do, any more or at all

  std::thread thread_;
};

}  // namespace trireme::detail
