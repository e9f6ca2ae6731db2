#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "average/exchange.h"
#include "average/outer_step.h"
#include "average/replica_state.h"
#include "trireme/average/averaging.h"
#include "trireme/core/seconds_since.h"

namespace trireme {

class Averaging::Impl {
 public:
  Impl(EngineBase& engine,
       const Replicas& replicas,
       const Mode& mode,
       const AveragingOptions& options);

  bool step();
  void average();
  void set_steps(std::int64_t steps);
  void join();
  void with_mean(const std::function<void()>& body);

  enum class Means { kExchanged, kLeftOut };
  EngineState state(Means which);
  detail::ReplicaProgress progress() const;
  void restore(const std::function<void(const StateView& into)>& fill, const std::string& progress);

  std::int64_t steps() const { return steps_; }
  std::int64_t next() const;
  Communicator& ranks() const { return replicas_.world(); }
  const AveragingUse& use() const { return use_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t period() const;
  // Changes what this rank's engine holds.
  void change(const std::function<void(const StateView& into)>& how) {
    engine_.restore(how, engine_.progress());
  }
  void count_since(Clock::time_point begin) {
    use_.seconds += detail::seconds_since(begin);
    use_.sent_bytes = exchange_.sent_bytes();
  }
  bool is_weight(const StateTensor& tensor) const {
    return tensor.kind == kWeightKind && frozen_.count(tensor.name) == 0;
  }
  bool differs(const StateTensor& tensor) const {
    return is_weight(tensor) || tensor.kind == kBufferKind;
  }
  // What is averaged with the weights, and divided inside a replica as they are.
  bool is_beside_weights(const StateTensor& tensor) const {
    return tensor.kind == kAverageKind ||
           (options_.states && tensor.kind.starts_with("optimizer."));
  }

  EngineBase& engine_;
  const Replicas replicas_;
  const Mode mode_;
  AveragingOptions options_;
  const std::set<std::string> frozen_;
  // Of everything but buffers, which every rank has.
  const detail::Held held_;
  detail::Exchange exchange_{replicas_};
  std::optional<detail::OuterStep> outer_;

  std::int64_t steps_ = 0;
  std::int64_t since_ = 0;  // the last averaging
  bool together_ = true;    // all replicas have the same weights
  AveragingUse use_;
};

}  // namespace trireme
