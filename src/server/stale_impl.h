#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/engine/engine_parts.h"
#include "server/service.h"
#include "server/standby.h"
#include "trireme/device/square_sum.h"
#include "trireme/server/stale_engine.h"

namespace trireme {
namespace detail {

// An engine of this rank alone, for which somebody else updates the parameters.
struct LoneWorker final : EngineBase {
  using EngineBase::EngineBase;
  using EngineBase::parts;
};

}  // namespace detail

// Note [who has what]
// A worker is an engine of one rank: it takes the model and sums its own micro-batches. Its
// optimizer is then replaced by that of this rank's part of the world, and so is its plan's
// ownership where its state is asked for (as_owner): states, masters and moving averages are the
// owners' (Shard), under the names that checkpoints have for them, and the engine's parameters are
// a copy that pull() writes to.
class StaleEngineBase::Impl {
 public:
  Impl(std::shared_ptr<torch::nn::Module> model,
       const Optimizer& optimizer,
       const Stale& stale,
       std::shared_ptr<Communicator> ranks,
       std::shared_ptr<World> world);

  bool step();
  void finish();
  void with_newest(const std::function<void()>& body);
  EngineState state();
  void go_on_from_newest();
  void restore(const std::function<void(const StateView& into)>& fill, const std::string& progress);
  void keep(const Notes& notes);
  // Throws where a loss would not find what there is now.
  void check_kept(const char* what) const;
  std::size_t state_bytes();
  int replicas() const { return stale_.replicas; }
  const std::optional<Notes>& kept() const { return kept_; }
  StaleUse use();
  MemoryReport memory_report();

  bool computes() const { return ranks_->rank() < workers_; }
  void check_computes(const char* what) const;
  int workers() const { return workers_; }
  const std::optional<Replayed>& replayed() const { return replayed_; }
  std::int64_t sent_bytes() const { return service_->sent_bytes(); }
  detail::LoneWorker& worker() { return *worker_; }
  Communicator& ranks() const { return *ranks_; }

 private:
  detail::EngineParts& parts() { return worker_->parts(); }
  void take_over(const Optimizer& optimizer);
  // The engine's state is that of the part that this rank owns, while `body` runs.
  template <class Body>
  auto as_owner(const Body& body) {
    const struct Swapped {
      detail::Ownership& here;
      detail::Ownership& other;
      Swapped(detail::Ownership& a, detail::Ownership& b) : here(a), other(b) {
        std::swap(here, other);
      }
      Swapped(const Swapped&) = delete;
      Swapped& operator=(const Swapped&) = delete;
      ~Swapped() { std::swap(here, other); }
    } swapped(parts().plan.ownership, saved_ownership_);
    return body();
  }
  // This rank's gradients, as they are to be applied; false where they are to be left out.
  bool prepare_gradients();
  double clip(const Scaling& scaling);
  [[noreturn]] void refuse_gradients(const std::string& what);
  void write_parameters(const std::function<void()>& body);
  // What every owner has of a unit becomes everyone's. Collective.
  void read_weights(const std::function<Span(std::size_t unit)>& own);
  void read_newest();
  void begin_here();
  void share_loss_scale();
  void follow_from_here();
  void go_on_from_kept();
  bool owns() const { return !shard_->weights().empty(); }
  void agree_on_steps();
  StateView of_all_ranks(const StateView& own, bool saved) const;

  const Stale stale_;
  const std::shared_ptr<Communicator> ranks_;
  const std::shared_ptr<World> world_;  // the same, or null
  const int workers_;
  std::unique_ptr<detail::LoneWorker> worker_;
  EngineOptions owner_options_;
  detail::ModelPlan owner_plan_;
  detail::Ownership saved_ownership_;
  std::vector<std::string> run_;  // what a record is of
  std::unique_ptr<detail::Shard> shard_;
  std::unique_ptr<detail::Standby> standby_;  // the shard gives it its versions
  std::unique_ptr<detail::Service> service_;
  std::optional<Replayed> replayed_;
  std::optional<Notes> kept_;
  std::int64_t first_ = 0;  // after it, all ranks went on from the newest weights
  int an_owner_ = 0;
  bool finished_ = false;
};

}  // namespace trireme
