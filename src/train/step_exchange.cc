// What the ranks tell each other of a step.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "train/step_runner.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/shard/micro_batches.h"

namespace trireme::detail {
namespace {

// Of the steps that stale ranks may be apart, whatever their bound is: as many reports may be on
// their way.
constexpr std::size_t kMostTold = 24;

}  // namespace

// Note [late news]
// Ranks that do not wait for each other in every step must not do so to tell each other of it
// either: what they hear is as many steps old as they may be apart, on all of them alike. The loss
// is then that of this rank.
StepRunner::Outcome StepRunner::exchange(const Notice& notice, Outcome mine) {
  auto told = std::make_unique<Told>();
  told->rounds = static_cast<std::size_t>(*std::max_element(dealt_.begin(), dealt_.end()));
  told->dealt = dealt_;
  told->step = next_step_;
  told->failure = notice.failure;
  std::vector<double>& record = *told->record;
  record.resize(Told::kFirst + told->rounds, 0);
  record[Told::kStop] = notice.wants_stop ? 1 : 0;
  record[Told::kFailed] = notice.failure.empty() ? 0 : 1;
  record[Told::kSeconds] = mine.seconds;
  record[Told::kCompute] = std::max(0.0, mine.seconds - mine.comm_seconds - mine.data_seconds);
  record[Told::kData] = mine.data_seconds;
  record[Told::kComm] = mine.comm_seconds;
  record[Told::kRankBytes] = static_cast<double>(mine.rank_bytes);
  record[Told::kNetworkBytes] = static_cast<double>(mine.network_bytes);
  record[Told::kTensorBytes] = static_cast<double>(mine.tensor_bytes);
  const std::vector<double> losses = loss_values();
  std::copy(losses.begin(), losses.end(), record.begin() + Told::kFirst);
  told->records->resize(record.size() * static_cast<std::size_t>(world_->size()));
  const auto run = [](const Told::Numbers& numbers) {
    return Span(
        numbers->data(), static_cast<std::int64_t>(numbers->size()), Dtype::kFloat64, numbers);
  };
  told->work = world_->all_gather(run(told->record), run(told->records));
  told_.push_back(std::move(told));

  const std::size_t late =
      settings_.sync == Synchronisation::kAsynchronous ? kMostTold
      : settings_.sync == Synchronisation::kStale
          ? std::min<std::size_t>(static_cast<std::size_t>(settings_.staleness), kMostTold)
          : 0;
  mine.loss = losses.empty() ? 0
                             : std::accumulate(losses.begin(), losses.end(), 0.0) /
                                   static_cast<double>(losses.size());
  // Note [ending together]
  // Who wants to end has time to wait for the others: where all of them want to, as after Ctrl-C,
  // this step is the last, and not the one in which the news is old enough for everybody. In a
  // replay the others may need what this rank does next to come so far.
  const bool may_wait = late > 0 && settings_.replay.empty();
  const bool all_want_to = may_wait && notice.wants_stop && all_want_to_stop(*told_.back());
  if (told_.size() <= late) {
    mine.stop = all_want_to;
    return mine;
  }
  const std::unique_ptr<Told> oldest = std::move(told_.front());
  told_.pop_front();
  const Outcome heard = hear(*oldest, mine);
  if (late == 0) {
    return heard;
  }
  mine.stop = heard.stop || all_want_to;
  return mine;
}

bool StepRunner::all_want_to_stop(Told& told) const {
  told.work.wait();
  const std::size_t stride = Told::kFirst + told.rounds;
  for (std::size_t at = Told::kStop; at < told.records->size(); at += stride) {
    if ((*told.records)[at] == 0) {
      return false;
    }
  }
  return true;
}

StepRunner::Outcome StepRunner::hear(Told& told, Outcome mine) {
  told.work.wait();
  const std::size_t rounds = told.rounds;
  const auto world = static_cast<std::size_t>(world_->size());
  const std::size_t stride = Told::kFirst + rounds;
  const std::vector<double>& records = *told.records;

  Outcome all = mine;
  std::vector<double> compute(world);
  double comm = 0;
  double least_comm = std::numeric_limits<double>::infinity();
  double network_bytes = 0;
  bool failed = false;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const double* of = records.data() + rank * stride;
    all.stop |= of[Told::kStop] != 0;
    failed |= of[Told::kFailed] != 0;
    all.seconds = std::max(all.seconds, of[Told::kSeconds]);
    all.data_seconds = std::max(all.data_seconds, of[Told::kData]);
    all.rank_bytes = std::max(all.rank_bytes, static_cast<std::int64_t>(of[Told::kRankBytes]));
    all.tensor_bytes =
        std::max(all.tensor_bytes, static_cast<std::int64_t>(of[Told::kTensorBytes]));
    comm += of[Told::kComm];
    least_comm = std::min(least_comm, of[Told::kComm]);
    network_bytes += of[Told::kNetworkBytes];
    compute[rank] = of[Told::kCompute];
  }
  if (failed) {  // every rank has come to know of it, and learns why
    on_all_ranks(*world_, [&] {
      if (!told.failure.empty()) {
        throw CheckpointError("", -1, told.failure);
      }
    });
  }
  all.comm_seconds = comm / static_cast<double>(world);
  all.exchange_seconds = least_comm;
  all.network_bytes = static_cast<std::int64_t>(network_bytes);
  // The losses in the order of the micro-batches: replica by replica, there round by round, in rank
  // order (Note [dealing]).
  double sum = 0;
  std::int64_t micro_batch = 0;
  // Workers of a server compute each for itself, as replicas of one rank do.
  const std::size_t replica = workers_ > 0  ? 1
                              : are_apart() ? world / static_cast<std::size_t>(replicas())
                                            : world;
  std::vector<MicroBatches> of_replica;
  for (auto first = told.dealt.begin(); first != told.dealt.end();
       first += static_cast<std::ptrdiff_t>(replica)) {
    of_replica.emplace_back(
        std::vector<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(replica)));
  }
  for (std::size_t place = 0; place < world * rounds; ++place) {
    const std::size_t which = place / (replica * rounds);
    const std::size_t rank = which * replica + place % replica;
    const std::int64_t k = static_cast<std::int64_t>(place / replica % rounds) -
                           of_replica[which].rounds_before(static_cast<int>(place % replica));
    if (k < 0 || k >= told.dealt[rank]) {
      continue;
    }
    const double loss = records[rank * stride + Told::kFirst + static_cast<std::size_t>(k)];
    if (!std::isfinite(loss) && settings_.precision != TrainPrecision::kFloat16) {
      throw GradientError(
          static_cast<int>(rank),
          concat("the loss of micro-batch {} is {} on rank {} in step {}, although its gradients "
                 "are finite: look at the data and the learning rate",
                 {micro_batch, loss, rank, told.step + 1}));
    }
    sum += loss;
    ++micro_batch;
  }
  all.loss = sum / static_cast<double>(micro_batch);
  balance_.observe(compute, told.dealt);
  const std::string news = balance_.news();
  if (!news.empty()) {
    say_(news);
  }
  return all;
}

}  // namespace trireme::detail
