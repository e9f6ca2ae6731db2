#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/world.h"
#include "trireme/core/pulse.h"
#include "trireme/shard/state_view.h"

namespace trireme {

namespace detail {
class VaultMirror;
class VaultSegment;
struct VaultPart;
}  // namespace detail

// A training's newest state, in memory that outlives the ranks of an elastic job (kept_memory.h).
// After a loss those that are left, and those that come, go on from the last step that all ranks
// had saved: at any stage, whatever their number, and wherever the memory is.
//
// Several vaults of a world are told apart by the order in which they are made.
//
// A rank saves into two places in turn, and no rank begins a save before all have ended the one
// before: there is always a step that all of them hold whole.
//
// Memory is lost with its machine. So in a world over several machines every K-th version
// (TRIREME_REDUNDANCY; the first one of a world in any case) is also kept by the next machine; K is
// 1 where nothing is said, 0 for none. It goes there while the next step is computed, and the next
// save begins when all of it has come. With K above 1 ranks have a third place, for the last
// version that was copied.
class Vault {
 public:
  // Looks for what is kept. Collective.
  explicit Vault(std::shared_ptr<World> world);
  Vault(const Vault&) = delete;
  Vault& operator=(const Vault&) = delete;
  // Waits for what is on its way to another machine.
  ~Vault();

  struct Version {
    std::int64_t step = 0;
    int ranks = 1;  // that saved it
    Notes notes;
  };
  // What there is to go on from; the same on every rank.
  const std::optional<Version>& newest() const { return newest_; }
  // Where there is nothing although something was kept: what is missing, for people. Else empty.
  const std::string& lost() const { return lost_; }
  // Fills all of `into` with it, but for generators where the number of ranks is another. Throws
  // ConfigError, having written nothing, where it is the state of something else. Collective.
  void load(const StateView& into) const;
  // Where several machines keep copies: saves at once what was loaded, of which there may be one
  // copy only by now, so that another machine can be lost before the first step has ended. As
  // `save`, with the state of the version that was found.
  void keep_loaded(const StateView& state);

  // Each element in the slices of one rank. Throws MemoryError, on every rank, where one has no
  // room for it, and CommError, when the state is kept, where the launcher wants the ranks to meet
  // anew (run_elastic does). Collective.
  void save(std::int64_t step, const StateView& state, const Notes& notes);

 private:
  void choose();
  void make_room(const StateView& state, const Notes& notes);
  void drill(PulsePhase part) const;
  enum class Kind { kStep, kLoaded };
  void keep(std::int64_t step, const StateView& state, const Notes& notes, Kind kind);

  std::shared_ptr<World> world_;
  std::int64_t use_;        // which vault of its world this is
  std::int64_t every_ = 0;  // which versions are kept by another machine, too; 0: none
  std::optional<Version> newest_;
  std::string lost_;
  std::vector<detail::VaultPart> parts_;  // of the newest version, by the rank that saved it
  std::vector<std::shared_ptr<detail::VaultSegment>> segments_;  // one for each form of the state
  std::shared_ptr<detail::VaultSegment> own_;                    // the one saved into last
  std::unique_ptr<detail::VaultMirror> mirror_;
  std::int64_t mirrored_ = -1;  // the last step that another machine has, too
  std::int64_t saves_ = 0;
};

}  // namespace trireme
