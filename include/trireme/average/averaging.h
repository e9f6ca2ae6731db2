#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "trireme/average/replicas.h"
#include "trireme/parallel/engine.h"

namespace trireme {

// Local SGD: after every `steps` steps, the replicas' weights become their mean.
struct Local {
  std::int64_t steps = 32;
};

// DiLoCo (Douillard et al., 2023): what the replicas have moved by in `steps` steps, in the mean,
// is a gradient for an outer SGD, whose result all of them go on from. With lr 1 and momentum 0 it
// is Local.
struct DiLoCo {
  std::int64_t steps = 100;
  struct Outer {
    double lr = 0.7;
    double momentum = 0.9;
    bool nesterov = true;
  } outer{};
};

// After every `steps` steps, each replica's weights become the mean of its own and its neighbours':
// fewer bytes than the mean of all, and the mean over all replicas stays what it is, but for
// rounding.
struct Gossip {
  std::int64_t steps = 1;
  enum class Graph {
    kRing,         // the replicas before and after it
    kExponential,  // the one 1, 2, 4, ... before it, in turn
    kRandom,       // one that is drawn each time: pairs; of an odd number, one stays alone
  } graph = Graph::kRing;
  std::uint64_t seed = 0;  // of kRandom
};

struct AveragingOptions {
  // Averages the optimizer's states as well, where they are numbers of each element (moments). Not
  // by default: each replica's moments are of its own gradients, and with Adam they would make
  // three times as many bytes.
  bool states = false;
  // Another number of steps from a step on, in ascending order: {{.from = 0, .steps = 1}, {500,
  // 8}}.
  struct Change {
    std::int64_t from = 0;
    std::int64_t steps = 1;
  };
  std::vector<Change> schedule{};
};

// What averaging has cost this rank.
struct AveragingUse {
  std::int64_t averagings = 0;  // in the whole training
  std::int64_t sent_bytes = 0;  // to ranks of other replicas, since it was made
  double seconds = 0;           // since it was made
};

// Loose synchronisation: replicas train on their own, with an engine each, and are averaged now and
// then.
//
//   trireme::Replicas replicas(world, {.ranks = 1});
//   trireme::Engine engine(model, trireme::Sgd({.lr = 0.1}), {}, replicas.mine());
//   trireme::Averaging averaging(engine, replicas, trireme::Local{.steps = 32});
//   ...
//   engine.backward(loss);
//   if (engine.step()) averaging.step();
//
// This is not what one process would compute: the number of replicas, and of steps between
// averagings, are part of the algorithm (docs/synchronisation.md). What does not change a bit is
// the stage and the number of ranks inside a replica, and running it again: means are computed in
// float64, in the order of the replicas, of the weights at full precision, and rounded once.
//
// Averaged are weights, their moving averages, buffers of floating-point numbers, and, if asked
// for, the optimizer's states. Everything else stays a replica's own.
class Averaging final : public Resumable {
 public:
  using Mode = std::variant<Local, DiLoCo, Gossip>;

  // Replica 0's weights and buffers become everyone's. `engine` is of replicas.mine(), between two
  // steps, and outlives it. The same on all ranks. Collective, of the world; so is all below.
  Averaging(EngineBase& engine,
            const Replicas& replicas,
            const Mode& mode,
            const AveragingOptions& options = {});
  ~Averaging() override;
  Averaging(const Averaging&) = delete;
  Averaging& operator=(const Averaging&) = delete;

  // After each step of the engine: averages where it is due, and then returns true. As often on
  // every replica; a rank communicates only where it is due.
  bool step();
  // Averages now, and counts the steps up to the next time from here.
  void average();
  // From the next step on, averages after every `steps` steps, whatever the mode and the schedule
  // say.
  void set_steps(std::int64_t steps);
  // Averages as average() does (with Gossip, over all replicas), and the optimizer's states, too:
  // what cannot be averaged becomes that of replica 0. Then all replicas are one.
  void join();
  // Calls `body` while the mean of all replicas is in the place of each one's weights, moving
  // averages and buffers: to evaluate or save what was learned together.
  void with_mean(const std::function<void()>& body);

  // The state of all replicas, complete at any step: after loading it on as many replicas, of any
  // size and at any stage, training goes on with the same bits. "weight" and "buffer" are the mean
  // of all. A state that an engine of the whole world has saved is every replica's (post-local
  // SGD).
  EngineState state() override;
  // The same for memory that replicas of this job go on from, and nobody else reads: without the
  // mean, which takes an exchange of all weights.
  EngineState state_to_keep();
  std::string progress() const override;
  void restore(const std::function<void(const StateView& into)>& fill,
               const std::string& progress = {}) override;

  std::int64_t steps() const override;  // of each replica, counted by step()
  std::int64_t next() const;            // how many there will be when it averages next
  Communicator& ranks() const override;
  const AveragingUse& use() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
