#include "trireme/checkpoint/vault.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "checkpoint/vault_mirror.h"
#include "checkpoint/vault_parts.h"
#include "checkpoint/vault_segment.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/tell.h"
#include "trireme/core/counted.h"
#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"

namespace trireme {
namespace {

using detail::concat;
using detail::VaultLayout;
using detail::VaultPart;
using detail::VaultSegment;

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;

// A version of one rank, as it is told to others.
struct HeldVersion {
  std::int64_t step;
  std::int64_t epoch;
  std::int32_t rank;
  std::int32_t ranks;
};

// Which vault of its world is made now: those after a loss are made in the same order.
std::int64_t number_of_next(std::int64_t epoch) {
  static std::int64_t last_epoch = -1;
  static std::int64_t count = 0;
  count = epoch == std::exchange(last_epoch, epoch) ? count + 1 : 0;
  return count;
}

// The versions that some rank's machine holds, newest first: of each, who holds which rank's part.
using Holders = std::vector<std::vector<int>>;
using HeldVersions = std::map<std::pair<std::int64_t, std::int64_t>, Holders, std::greater<>>;

HeldVersions held_by(const std::vector<std::string>& told) {
  HeldVersions found;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    for (std::size_t at = 0; at < told[rank].size(); at += sizeof(HeldVersion)) {
      HeldVersion held{};
      std::memcpy(&held, told[rank].data() + at, sizeof(held));
      Holders& holders = found[{held.step, held.epoch}];
      holders.resize(static_cast<std::size_t>(held.ranks));
      auto& of_rank = holders[static_cast<std::size_t>(held.rank)];
      if (of_rank.empty() || of_rank.back() != static_cast<int>(rank)) {
        of_rank.push_back(static_cast<int>(rank));
      }
    }
  }
  return found;
}

std::string what_is_missing(std::int64_t step, const Holders& holders) {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < holders.size(); ++rank) {
    if (holders[rank].empty()) {
      missing.push_back(static_cast<int>(rank));
    }
  }
  return concat(
      "of the state of step {}, which {} had kept in memory, the part of {} {} is on no "
      "machine that is left",
      {step,
       detail::counted(static_cast<std::int64_t>(holders.size()), "rank"),
       missing.size() == 1 ? "rank" : "ranks",
       detail::listed(missing, [](int rank) { return std::to_string(rank); })});
}

}  // namespace

Vault::Vault(std::shared_ptr<World> world)
    : world_(std::move(world)), use_(number_of_next(world_->epoch())) {
  TRIREME_CHECK(
      launcher_keeps_memory(),
      "Vault: expected a rank of an elastic job, whose launcher keeps the memory; found a "
      "process that has no such launcher: start it with trireme run --elastic or "
      "--restart, or do without a vault (launcher_keeps_memory() tells)");
  if (world_->machines() > 1) {
    // Launchers may have been told different things: rank 0's applies.
    std::vector<std::int64_t> every = {env_integer(kEnvRedundancy, 0, kMostSteps).value_or(1)};
    world_->broadcast(every, 0).wait();
    every_ = every[0];
  }
  choose();
}

Vault::~Vault() = default;

void Vault::choose() {
  std::vector<std::shared_ptr<VaultSegment>> here;
  std::string mine;
  for (const FileDescriptor& memory : kept_memory()) {
    auto segment = VaultSegment::open(memory);
    if (!segment || segment->owner().use != use_) {
      continue;
    }
    for (const auto& [step, place] : segment->versions()) {
      const detail::VaultOwner& owner = segment->owner();
      const HeldVersion held{step, owner.epoch, owner.rank, owner.ranks};
      mine.append(reinterpret_cast<const char*>(&held), sizeof(held));
    }
    here.push_back(std::move(segment));
  }
  const HeldVersions all = held_by(all_texts(*world_, mine));
  const auto whole = std::find_if(all.begin(), all.end(), [](const auto& version) {
    return std::none_of(version.second.begin(), version.second.end(), [](const auto& holders) {
      return holders.empty();
    });
  });
  if (whole == all.end()) {
    lost_ = all.empty() ? "" : what_is_missing(all.begin()->first.first, all.begin()->second);
    return;
  }
  const auto& [step, epoch] = whole->first;
  for (const std::vector<int>& holders : whole->second) {
    parts_.push_back({.holders = holders});
  }
  for (const auto& segment : here) {
    const auto versions = segment->versions();
    const auto found = versions.find(step);
    if (segment->owner().epoch == epoch && found != versions.end()) {
      VaultPart& part = parts_[static_cast<std::size_t>(segment->owner().rank)];
      part.here = segment;
      part.place = found->second;
    }
  }
  const VaultPart& first = parts_.front();
  std::string text;
  if (first.is_everywhere(*world_) || first.teller(0) == world_->rank()) {
    const auto notes = first.here->notes_text(first.place);
    text.assign(reinterpret_cast<const char*>(notes.data()), notes.size());
  }
  if (!first.is_everywhere(*world_)) {
    text = all_texts(*world_, text)[static_cast<std::size_t>(first.teller(0))];
  }
  newest_ = {.step = step,
             .ranks = static_cast<int>(parts_.size()),
             .notes = detail::parse_vault_notes(text)};
}

void Vault::load(const StateView& into) const {
  TRIREME_CHECK(newest_, "Vault::load: there is nothing to go on from");
  const auto drill = [&](DrillPoint point) {
    detail::drill_at(point, newest_->step, world_->rank(), world_->size());
  };
  drill(DrillPoint::kTakeOver);
  detail::load_parts(*world_, parts_, into, /*with_generators=*/newest_->ranks == world_->size());
  drill(DrillPoint::kTakenOver);
}

void Vault::make_room(const StateView& state, const Notes& notes) {
  const VaultLayout layout = VaultLayout::of(state, notes, every_ > 1 ? 3 : 2);
  std::vector<VaultLayout> theirs;
  if (every_ > 0) {
    if (!mirror_) {
      mirror_ = std::make_unique<detail::VaultMirror>(*world_);
    }
    theirs = mirror_->exchange(layout);
  }
  // Each rank would find its own part of what all of its machine need.
  std::vector<std::int64_t> bytes = {static_cast<std::int64_t>(layout.bytes())};
  for (const VaultLayout& each : theirs) {
    bytes[0] += static_cast<std::int64_t>(each.bytes());
  }
  world_->machine().all_reduce(bytes).wait();
  on_all_ranks(*world_, [&] {
    try {
      device::check_available(static_cast<std::size_t>(bytes[0]));
      own_ = VaultSegment::make({world_->epoch(), use_, world_->rank(), world_->size()}, layout);
      segments_.push_back(own_);
      keep_memory(world_->epoch(), use_, own_->memory());
      if (mirror_) {
        mirror_->make_room(world_->epoch(), use_, theirs);
      }
    } catch (const MemoryError& error) {
      throw MemoryError(concat(
          "{}; an elastic job keeps {} copies of its state in memory, and twice as many for a "
          "moment after a loss (docs/elastic.md): train a smaller model, use {}, or leave out "
          "--elastic and --restart and save checkpoints instead",
          {error.what(),
           every_ == 0   ? "two"
           : every_ == 1 ? "four"
                         : "five",
           every_ == 0 ? "a larger machine" : "larger machines, or --redundancy 0"}));
    }
  });
}

void Vault::drill(PulsePhase part) const {
  const std::int64_t step = detail::pulse().step.load(std::memory_order_relaxed) - 1;
  detail::drill_step(part, step, world_->rank(), world_->size());
}

void Vault::save(std::int64_t step, const StateView& state, const Notes& notes) {
  drill(PulsePhase::kVault);
  keep(step, state, notes, Kind::kStep);
}

void Vault::keep_loaded(const StateView& state) {
  if (every_ > 0 && newest_) {
    const Version loaded = *newest_;
    keep(loaded.step, state, loaded.notes, Kind::kLoaded);
  }
}

void Vault::keep(std::int64_t step, const StateView& state, const Notes& notes, Kind kind) {
  TRIREME_CHECK(
      std::ranges::all_of(state.slices,
                          [](const StateSlice& slice) { return slice.store == nullptr; }),
      "Vault: expected a state in memory, of which it keeps a copy there, found one on a disk "
      "(EngineOptions::offload): leave one of the two out");
  if (mirror_) {
    mirror_->wait();
  }
  // New memory, which may not be there, is for the first save, notes that have grown, and a state
  // of another form than any before: replicas have two, between averages and after them. All ranks
  // take the one that suits them all.
  std::vector<std::int32_t> news = {epoch_is_over() ? 1 : 0};
  for (const auto& segment : segments_) {
    news.push_back(segment->has_room_for(state, notes) ? 0 : 1);
  }
  world_->all_reduce(news, ReduceOp::kMax).wait();
  const auto fits = std::find(news.begin() + 1, news.end(), 0) - news.begin() - 1;
  detail::mark(PulsePhase::kVault);
  // All ranks have ended the save before, and what is kept of it elsewhere has come: from here on
  // it can be gone on from, and none older is needed.
  if (saves_ == 1 && world_->epoch() > 0) {
    forget_memory_before(world_->epoch(), use_);  // every rank, as it may have another launcher
  }
  parts_.clear();
  newest_.reset();
  if (fits == static_cast<std::ptrdiff_t>(segments_.size())) {
    make_room(state, notes);
  } else {
    own_ = segments_[static_cast<std::size_t>(fits)];
    if (mirror_) {
      mirror_->take_room(static_cast<std::size_t>(fits));
    }
  }
  TRIREME_ASSERT(own_->save(step, state, notes, mirrored_),
                 "a vault has no room for what it was made for");
  if (kind == Kind::kStep) {
    drill(PulsePhase::kKept);
  }
  if (!mirror_) {
    world_->barrier().wait();  // so that a loss costs the step at hand, and none before it
  }
  detail::mark(PulsePhase::kVault);
  if (kind == Kind::kStep && world_->rank() == 0) {
    detail::drill_commit(world_->epoch());
  }
  if (kind == Kind::kStep) {
    drill(PulsePhase::kAgreed);
  }
  const bool copies = every_ > 0 && saves_ % every_ == 0;
  ++saves_;
  if (news[0] != 0) {
    if (mirror_) {  // a machine that leaves takes its memory along
      mirror_->start(own_, step);
      mirror_->wait();
      world_->barrier().wait();
    }
    throw CommError(CommError::Reason::kPeerLeft,
                    -1,
                    concat("the number of ranks changes after step {}: this world ends", {step}));
  }
  if (copies) {
    mirror_->start(own_, step);
    mirrored_ = step;
  }
}

}  // namespace trireme
