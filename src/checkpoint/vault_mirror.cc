#include "checkpoint/vault_mirror.h"

#include <algorithm>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "trireme/comm/kept_memory.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// What goes in one message: others get a turn between two of them.
constexpr std::size_t kMirrorPiece = 4 << 20;

// What is said of a version, or of how long versions are, before it comes.
struct MirrorHead {
  std::int64_t step;
  std::uint64_t index_bytes;
  std::uint64_t notes_bytes;
  std::uint64_t state_bytes;
};

using MirrorBytes = std::span<std::byte>;

template <class T>
MirrorBytes bytes_of_value(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Span as_span(MirrorBytes bytes) {
  return {bytes.data(), static_cast<std::int64_t>(bytes.size()), Dtype::kUint8};
}

// Sends one thing and receives others, all at once.
void swap_messages(Communicator& group,
                   std::pair<int, MirrorBytes> out,
                   const std::vector<std::pair<int, MirrorBytes>>& in) {
  std::vector<Work> works;
  for (const auto& [from, bytes] : in) {
    if (!bytes.empty()) {
      works.push_back(group.recv(as_span(bytes), from));
    }
  }
  if (!out.second.empty()) {
    works.push_back(group.send(as_span(out.second), out.first));
  }
  try {
    for (Work& work : works) {
      work.wait();
    }
  } catch (...) {
    for (Work& work : works) {
      work.forget();  // the group has ended
    }
    throw;
  }
}

// The same with heads. Returns who they came from, for what follows them.
std::vector<std::pair<int, MirrorBytes>> swap_heads(Communicator& group,
                                                    std::pair<int, MirrorHead> out,
                                                    const std::vector<int>& from,
                                                    std::vector<MirrorHead>& heads) {
  std::vector<std::pair<int, MirrorBytes>> in;
  in.reserve(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    in.emplace_back(from[i], bytes_of_value(heads[i]));
  }
  swap_messages(group, {out.first, bytes_of_value(out.second)}, in);
  return in;
}

MirrorBytes piece_of(MirrorBytes all, std::size_t number) {
  const std::size_t begin = std::min(all.size(), number * kMirrorPiece);
  return all.subspan(begin, std::min(kMirrorPiece, all.size() - begin));
}

}  // namespace

VaultMirror::VaultMirror(World& world) {
  const std::vector<std::int32_t> mine = {world.machine_rank()};
  std::vector<std::int32_t> machines(static_cast<std::size_t>(world.size()));
  world.all_gather(mine, machines).wait();
  std::map<int, std::vector<int>> ranks;  // by machine
  for (int rank = 0; rank < world.size(); ++rank) {
    ranks[machines[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  for (auto machine = ranks.begin(); machine != ranks.end(); ++machine) {
    const auto next = std::next(machine) == ranks.end() ? ranks.begin() : std::next(machine);
    // There may be more ranks on one than on the other.
    for (std::size_t i = 0; i < machine->second.size(); ++i) {
      const int to = next->second[i % next->second.size()];
      if (machine->second[i] == world.rank()) {
        to_ = to;
      }
      if (to == world.rank()) {
        from_.push_back(machine->second[i]);
      }
    }
  }
  group_ = world.split(0);
}

VaultMirror::~VaultMirror() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::vector<VaultLayout> VaultMirror::exchange(const VaultLayout& mine) {
  std::vector<MirrorHead> heads(from_.size());
  std::vector<std::pair<int, MirrorBytes>> in =
      swap_heads(*group_,
                 {to_, {VaultSegment::kNone, mine.index.size(), mine.notes, mine.state}},
                 from_,
                 heads);
  std::vector<VaultLayout> theirs(from_.size());
  for (std::size_t i = 0; i < from_.size(); ++i) {
    theirs[i].index.resize(heads[i].index_bytes);
    theirs[i].notes = heads[i].notes_bytes;
    theirs[i].state = heads[i].state_bytes;
    in[i].second = std::as_writable_bytes(std::span(theirs[i].index));
  }
  std::string index = mine.index;
  swap_messages(*group_, {to_, std::as_writable_bytes(std::span(index))}, in);
  return theirs;
}

void VaultMirror::make_room(std::int64_t epoch,
                            std::int64_t use,
                            const std::vector<VaultLayout>& theirs) {
  kept_.clear();
  for (std::size_t i = 0; i < from_.size(); ++i) {
    kept_.push_back(VaultSegment::make({epoch, use, from_[i], group_->size()}, theirs[i]));
    keep_memory(epoch, use, kept_.back()->memory());
  }
  rooms_.push_back(kept_);
}

void VaultMirror::start(std::shared_ptr<VaultSegment> own, std::int64_t step) {
  failure_ = nullptr;
  const auto work = [this, own = std::move(own), step] {
    try {
      exchange_version(*own, step);
    } catch (...) {
      failure_ = std::current_exception();
    }
  };
  try {
    thread_ = std::thread(work);
  } catch (const std::system_error&) {
    work();  // the limit on processes: the next step waits for it
  }
}

void VaultMirror::wait() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void VaultMirror::exchange_version(const VaultSegment& own, std::int64_t step) {
  const int place = own.versions().at(step);
  const MirrorBytes notes = own.notes_text(place);
  const MirrorBytes state = own.state_bytes(place);
  std::vector<MirrorHead> heads(from_.size());
  std::vector<std::pair<int, MirrorBytes>> in =
      swap_heads(*group_, {to_, {step, 0, notes.size(), state.size()}}, from_, heads);
  std::vector<int> places;
  std::size_t most = state.size();
  for (std::size_t i = 0; i < from_.size(); ++i) {
    places.push_back(kept_[i]->begin(heads[i].notes_bytes));
    in[i].second = kept_[i]->notes_text(places[i]);
    most = std::max<std::size_t>(most, heads[i].state_bytes);
  }
  swap_messages(*group_, {to_, notes}, in);
  for (std::size_t piece = 0; piece * kMirrorPiece < most; ++piece) {
    for (std::size_t i = 0; i < from_.size(); ++i) {
      in[i].second = piece_of(kept_[i]->state_bytes(places[i]), piece);
    }
    swap_messages(*group_, {to_, piece_of(state, piece)}, in);
  }
  for (std::size_t i = 0; i < from_.size(); ++i) {
    kept_[i]->finish(places[i], heads[i].step);
  }
}

}  // namespace trireme::detail
