#pragma once

#include <cstdint>
#include <vector>

#include "parallel/model/parameter_table.h"
#include "parallel/model/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/parallel/options.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// A rank among others.
struct RankGroup {
  int rank = 0;
  int size = 1;
  bool one_machine = true;
  bool one_device = true;  // the host of one machine, or a GPU that all of them are on

  static RankGroup of(const Communicator& ranks) {
    return {ranks.rank(), ranks.size(), ranks.one_machine(), ranks.one_machine()};
  }
};

// Where parameters live.
enum class ParameterHome {
  kReplicated,  // whole on every rank
  kMapped,      // one copy that all ranks of the machine see
  kCopied,      // the same, with private copies of what is in use
  kScattered,   // a part on each rank, on several machines
};

// Where the sums of a step's gradients are when it ends.
enum class SumsReach {
  kOwners,      // each with the owner of its range
  kPeers,       // the same, and every rank reads the others' where they are
  kEverywhere,  // copied to every rank
};

// Who owns what of a model: a value, built once from the options (stage, group, shares, split) and
// asked everywhere. The owners are all ranks, or those of a machine. Each has a range of every unit
// at every stage: where nothing is divided, it still says who sums and who saves what.
class Ownership {
 public:
  Ownership() = default;
  // Throws ConfigError for a division that these options do not have.
  Ownership(const EngineOptions& options,
            const RankGroup& ranks,
            const RankGroup& owners,
            const std::vector<Unit>& units,
            const std::vector<Parameter>& parameters);

  // --- what is divided among the owners

  bool divides_states() const { return stage_ >= 1; }
  // Of a rank alone, what it owns is everything, gaps included.
  bool divides_sums() const { return stage_ >= 2 && ranks_.size > 1; }
  ParameterHome home() const { return home_; }
  SumsReach reach() const;
  // Every machine has all of it, divided among its ranks; only gradients travel.
  bool by_machine() const { return owners_.size != ranks_.size; }

  // --- ranges of a unit

  const std::vector<Range>& ranges(std::size_t unit) const { return units_[unit].ranges; }
  Range mine(std::size_t unit) const {
    return ranges(unit)[static_cast<std::size_t>(owners_.rank)];
  }
  // What this rank updates, and keeps masters, states and averages of.
  Range updated(std::size_t unit) const { return divides_states() ? mine(unit) : whole(unit); }
  // What this rank has memory for sums of.
  Range summed(std::size_t unit) const { return divides_sums() ? mine(unit) : whole(unit); }
  // What this rank writes to a checkpoint: where every machine has everything, the first one does.
  Range saved(std::size_t unit) const { return ranks_.rank == owners_.rank ? mine(unit) : Range{}; }
  int owner_of(std::size_t unit, std::int64_t element) const;
  // Elements for each owner, of all or of a part of a unit.
  Counts counts(std::size_t unit) const { return counts(unit, whole(unit)); }
  Counts counts(std::size_t unit, Range within) const;

 private:
  struct Divided {
    std::int64_t numel = 0;
    std::vector<Range> ranges;  // by owner
  };
  Range whole(std::size_t unit) const { return {0, units_[unit].numel}; }

  int stage_ = 0;
  RankGroup ranks_;
  RankGroup owners_;
  ParameterHome home_ = ParameterHome::kReplicated;
  std::vector<Divided> units_;
};

}  // namespace trireme::detail
