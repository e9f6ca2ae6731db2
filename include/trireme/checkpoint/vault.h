#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/world.h"
#include "trireme/shard/state_view.h"

namespace trireme {

namespace detail {
class VaultSegment;
}  // namespace detail

// A training's newest state, in memory that outlives the ranks of an elastic job (kept_memory.h).
// After a loss those that are left, and those that come, go on from the last step that all ranks
// had saved: at any stage, whatever their number.
//
// Several vaults of a world are told apart by the order in which they are made.
//
// A rank saves into two places in turn, and no rank begins a save before all have ended the one
// before: there is always a step that all of them hold whole.
class Vault {
 public:
  // Looks for what is kept. Collective.
  explicit Vault(std::shared_ptr<World> world);
  Vault(const Vault&) = delete;
  Vault& operator=(const Vault&) = delete;
  ~Vault();

  struct Version {
    std::int64_t step = 0;
    int ranks = 1;  // that saved it
    Notes notes;
  };
  // What there is to go on from; the same on every rank.
  const std::optional<Version>& newest() const { return newest_; }
  // Fills all of `into` with it, but for generators where the number of ranks is another. Throws
  // ConfigError, having written nothing, where it is the state of something else.
  void load(const StateView& into) const;

  // Each element in the slices of one rank. Throws MemoryError, on every rank, where one has no
  // room for it, and CommError, when the state is kept, where the launcher wants the ranks to meet
  // anew (run_elastic does). Collective.
  void save(std::int64_t step, const StateView& state, const Notes& notes);

 private:
  void choose();
  void make_room(const StateView& state, const Notes& notes);

  std::shared_ptr<World> world_;
  std::int64_t use_;  // which vault of its world this is
  std::optional<Version> newest_;
  std::vector<std::shared_ptr<detail::VaultSegment>> earlier_;  // the ranks' of the newest version
  std::shared_ptr<detail::VaultSegment> own_;
  bool has_saved_ = false;
};

}  // namespace trireme
