#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trireme/core/deadline.h"

namespace trireme {

class Communicator;

// What a backend knows of one operation in flight.
class WorkState {
 public:
  virtual ~WorkState() = default;
  // Blocks until the operation is finished on this rank; `timeout` zero means the communicator's.
  virtual void wait(Milliseconds timeout) = 0;
  // Makes whatever progress it can without blocking; true when finished.
  virtual bool poll() = 0;
  // The ranks it waits for, as far as is known.
  virtual std::vector<int> missing() { return {}; }
};

// An operation that has been issued and may still be running. It keeps the memory of spans that
// have an owner (tensors, shared buffers) alive until it is finished; other memory must outlive it
// and must not be touched before `wait` returns.
//
// Operations of one communicator end in the order they were issued; one may begin before those in
// front of it have ended, unless it uses memory that they write, or writes what they use. Progress
// is made by whoever calls into the communicator (`wait`, `done`, or the next operation), or by a
// helper thread if `InitOptions::progress_thread` asks for one.
class [[nodiscard]] Work {
 public:
  Work() = default;  // already finished
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  Work(Work&&) = default;
  Work& operator=(Work&&) = default;
  ~Work();  // an unfinished operation continues; that nobody waited for it is logged

  // Returns when the result is in place and the inputs may be reused. Throws CommError when a peer
  // dies (within a second), calls something else, or when `timeout` (default: the communicator's
  // deadline, counted from this call) passes; the message names the ranks that are missing.
  void wait();
  void wait(Milliseconds timeout);

  // Nobody will wait, on purpose: the operation continues, and nothing is logged.
  void forget() { state_.reset(); }

  // True when finished; never blocks. Throws like wait.
  bool done();

  // The ranks it waits for, as far as is known; for messages.
  std::vector<int> missing() const;

 private:
  friend class Communicator;
  std::shared_ptr<WorkState> state_;
};

}  // namespace trireme
