// What the ranks tell each other of a step.

#include <algorithm>
#include <cmath>

#include "train/step_runner.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme::detail {

StepRunner::Outcome StepRunner::exchange(const Notice& notice, Outcome mine) {
  // What each rank has to say, then its losses.
  enum : std::size_t {
    kStop,
    kFailed,
    kSeconds,
    kCompute,
    kData,
    kComm,
    kRankBytes,
    kTensorBytes,
    kFirst
  };
  const auto rounds = static_cast<std::size_t>(*std::max_element(dealt_.begin(), dealt_.end()));
  const auto world = static_cast<std::size_t>(world_->size());
  const std::size_t stride = kFirst + rounds;
  std::vector<double> record(stride, 0);
  record[kStop] = notice.wants_stop ? 1 : 0;
  record[kFailed] = notice.failure.empty() ? 0 : 1;
  record[kSeconds] = mine.seconds;
  record[kCompute] = std::max(0.0, mine.seconds - mine.comm_seconds - mine.data_seconds);
  record[kData] = mine.data_seconds;
  record[kComm] = mine.comm_seconds;
  record[kRankBytes] = static_cast<double>(mine.rank_bytes);
  record[kTensorBytes] = static_cast<double>(mine.tensor_bytes);
  const std::vector<double> losses = loss_values();
  std::copy(losses.begin(), losses.end(), record.begin() + kFirst);
  std::vector<double> records(stride * world);
  world_->all_gather(record, records).wait();

  Outcome all = mine;
  std::vector<double> compute(world);
  double comm = 0;
  bool failed = false;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const double* of = records.data() + rank * stride;
    all.stop |= of[kStop] != 0;
    failed |= of[kFailed] != 0;
    all.seconds = std::max(all.seconds, of[kSeconds]);
    all.data_seconds = std::max(all.data_seconds, of[kData]);
    all.rank_bytes = std::max(all.rank_bytes, static_cast<std::int64_t>(of[kRankBytes]));
    all.tensor_bytes = std::max(all.tensor_bytes, static_cast<std::int64_t>(of[kTensorBytes]));
    comm += of[kComm];
    compute[rank] = of[kCompute];
  }
  if (failed) {  // every rank has come to know of it, and learns why
    on_all_ranks(*world_, [&] {
      if (!notice.failure.empty()) {
        throw CheckpointError("", -1, notice.failure);
      }
    });
  }
  all.comm_seconds = comm / static_cast<double>(world);
  // The losses in the order of the micro-batches: replica by replica, there round by round, in rank
  // order.
  double sum = 0;
  std::int64_t micro_batch = 0;
  const std::size_t replica = world / static_cast<std::size_t>(replicas());
  for (std::size_t place = 0; place < world * rounds; ++place) {
    const std::size_t round = place / replica % rounds;
    const std::size_t rank = place / (replica * rounds) * replica + place % replica;
    if (dealt_[rank] <= static_cast<std::int64_t>(round)) {
      continue;
    }
    const double loss = records[rank * stride + kFirst + round];
    if (!std::isfinite(loss) && settings_.precision != TrainPrecision::kFloat16) {
      throw GradientError(
          static_cast<int>(rank),
          concat("the loss of micro-batch {} is {} on rank {} in step {}, although its gradients "
                 "are finite: look at the data and the learning rate",
                 {micro_batch, loss, rank, next_step_ + 1}));
    }
    sum += loss;
    ++micro_batch;
  }
  all.loss = sum / static_cast<double>(micro_batch);
  balance_.observe(compute, dealt_);
  const std::string news = balance_.news();
  if (!news.empty()) {
    say_(news);
  }
  return all;
}

}  // namespace trireme::detail
