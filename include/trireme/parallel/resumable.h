#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/shard/state_view.h"

namespace trireme {

// The state that training resumes from, as named ranges; see Resumable::state.
struct EngineState {
  StateView view;
  std::shared_ptr<const void> owner;  // of copies that the view points to
};

// What checkpoints save and load: an engine, or replicas of one (Averaging). Every rank of ranks()
// makes the calls, between two steps.
class Resumable {
 public:
  virtual ~Resumable() = default;

  // All of it; each element is in the slices of one rank. Valid until the next call that changes
  // anything.
  virtual EngineState state() = 0;
  // What is not in named ranges (step counts, learning rate, loss scale), as a text for restore().
  virtual std::string progress() const = 0;
  // Restores a state. `fill` is given what this rank holds, which at a low stage is more than it
  // saves, and writes what it has of it; the rest keeps its value. An empty `progress`: only values
  // change, and moving averages start afresh. The same text on every rank. If it fails on one rank,
  // all throw what `fill` threw. By throwing a ConfigError, `fill` promises that it has written
  // nothing (it only looked at shapes, say), and everything remains usable. After any other error
  // an engine can only be unwrapped.
  virtual void restore(const std::function<void(const StateView& into)>& fill,
                       const std::string& progress = {}) = 0;

  virtual std::int64_t steps() const = 0;  // so far
  virtual Communicator& ranks() const = 0;

 protected:
  Resumable() = default;
  Resumable(const Resumable&) = default;
  Resumable(Resumable&&) = default;
  Resumable& operator=(const Resumable&) = default;
  Resumable& operator=(Resumable&&) = default;
};

}  // namespace trireme
