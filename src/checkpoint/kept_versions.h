#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "checkpoint/vault_segment.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// What each rank keeps of itself, whenever it likes, in memory that outlives the ranks of a job on
// one machine (kept_memory.h): some things, each on a shelf of its own with places for a few
// versions. Unlike those of a vault, they are no business of the other ranks: nobody waits, and
// each may be at another version. What they have in common, their user knows.
class KeptVersions {
 public:
  // Looks at what the ranks of an earlier world had kept on so many shelves: of the newest one
  // whose ranks all have something on the last shelf, which is what each begins with last.
  // `number`: which of those of its world it is; those after a loss are made in the same order.
  KeptVersions(std::shared_ptr<World> world, int shelves, std::int64_t number);
  // Of the next one that is made in this world; `take`: which is made now.
  static std::int64_t next_number(const World& world, bool take);

  // --- what there is

  // Ranks that had kept it; 0: nothing is there.
  int ranks() const { return static_cast<int>(found_.size()); }
  // The versions that are whole; the data of a view is in this memory.
  std::vector<std::int64_t> versions(int shelf, int rank) const;
  Notes notes(int shelf, int rank, std::int64_t version) const;
  StateView state(int shelf, int rank, std::int64_t version) const;

  // --- what this rank keeps from now on

  struct Shelf {
    StateView like;  // what is kept; without slices: nothing
    Notes notes;     // about as long as these
    int places = 2;
  };
  // Takes the memory, also in place of what was taken before. Throws MemoryError, on every rank.
  // Collective.
  void make_room(const std::vector<Shelf>& shelves);
  // From any thread, but of a shelf from one at a time. The oldest version goes. Throws Error where
  // it is no longer what there was room for.
  void keep(int shelf, std::int64_t version, const StateView& state, const Notes& notes = {});
  // All ranks have what they begin with: what was kept before make_room() is needed no longer.
  // Collective.
  void begin();

 private:
  using Segment = std::shared_ptr<VaultSegment>;
  Segment found(int shelf, int rank) const;
  std::int64_t use_of(std::int64_t generation, std::int64_t shelf) const;

  std::shared_ptr<World> world_;
  std::int64_t number_;
  // What is made anew does not replace what there was before all ranks have it. A use of its own
  // for each, as launchers may hear from one rank that something is needed no longer after another
  // has taken what is next.
  std::int64_t generation_ = -1;
  std::set<std::int64_t> earlier_;           // uses of worlds before this one
  std::vector<std::vector<Segment>> found_;  // by rank and shelf; null: nothing
  std::vector<Segment> own_;                 // by shelf
};

// Fills `into` with what was kept under the same names. Throws ConfigError, having written nothing,
// where some of it is not there.
void load_kept(const std::vector<StateView>& kept, const StateView& into);

}  // namespace trireme::detail
