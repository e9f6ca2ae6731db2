#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/average/replicas.h"
#include "trireme/shard/state_view.h"

// How the states of several replicas are one: weights and buffers that all have under their plain
// names, and what is each one's own with "replica-2." before its kind.

namespace trireme::detail {

enum class StateForm {
  kOneEngine,  // as one engine of all ranks has saved it: everything is everyone's
  kTogether,   // replicas with the same weights, right after they were averaged
  kApart,      // replicas with weights of their own; the plain ones are the mean
};

// Elements that differ between replicas where these are apart; the others are the same.
using Differs = std::function<bool(const StateTensor& tensor)>;

// A state of this rank's engine as its part of the state of all replicas: to be saved, or to be
// filled. `means`: for each slice of `own`, the mean of it, where a plain one is saved and has one.
StateView state_to_save(const StateView& own,
                        const std::vector<std::byte*>& means,
                        StateForm form,
                        const Replicas& replicas,
                        const Differs& differs);
StateView state_to_fill(const StateView& own,
                        StateForm form,
                        const Replicas& replicas,
                        const Differs& differs);

// What is not in named ranges.
struct ReplicaProgress {
  StateForm form = StateForm::kTogether;
  std::string mode;
  std::int64_t steps = 0;
  std::int64_t since = 0;  // the last averaging
  std::int64_t averagings = 0;
  std::vector<std::string> engines;  // by replica

  std::string to_text() const;
  // Also what an engine has saved. Throws ConfigError for what is not of so many replicas.
  static ReplicaProgress parse(const std::string& text, int replicas);
};

}  // namespace trireme::detail
