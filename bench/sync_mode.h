#pragma once

#include <string>

namespace trireme::bench {

// A way to synchronise that `trireme bench sync` measures: "exact", "balance" (exact, with
// micro-batches dealt by measured speeds), "local:16", "diloco:16", "gossip:16", "stale:3",
// "async".
struct SyncMode {
  std::string name;
  int number = 0;  // steps between averagings, or the bound; 0 where the mode has none

  // Throws ConfigError.
  static SyncMode parse(const std::string& text);
  // Replicas that train on their own.
  bool averages() const;
  // A parameter server.
  bool is_stale() const;
};

// What one of so many ranks, one replica each, sends in a step, in the mean over the steps: the
// formulas of docs/synchronisation.md and docs/collectives.md, in float32.
double bytes_by_formula(const SyncMode& mode, int ranks, double parameters);

}  // namespace trireme::bench
