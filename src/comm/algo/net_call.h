#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/algo/channel.h"
#include "comm/order/matching.h"
#include "comm/queue/backend.h"

namespace trireme::detail {

// Inputs up to this size travel with the announcement of their operation.
constexpr std::size_t kEagerNetBytes = 32 << 10;
// Those of a reduction between two ranks: each needs all of the other's anyway.
constexpr std::size_t kEagerPairBytes = 64 << 10;

// Ranges that an announcement has room for: those of a call, or of those that all ranks of a
// machine leave out, cut at the ranks' parts.
constexpr std::size_t kMostAnnouncedRanges = 2 * kMaxAbsentRanges;

// Memory for announcements, used over and over.
class AnnouncementPool {
 public:
  explicit AnnouncementPool(int size);
  using Buffer = std::unique_ptr<std::byte[]>;
  Buffer take();
  void give_back(Buffer buffer) { spare_.push_back(std::move(buffer)); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<Buffer> spare_;
};

// How the ranks of a call hear of each other.
enum class Announcing {
  kToAll,     // every rank tells every other
  kPassedOn,  // announcements are passed on from rank to rank: all hear the same
};

// Whether all that anybody needs of an operation of `size` ranks travels with the announcements.
bool fits_announcements(const Operation& operation, int size, Announcing announcing);

// One collective in flight: what this rank says of it, and what the others say. An announcement is
// a header, the counts, the absent ranges and, where it is small, the input itself: the whole, or
// what the one that it is for needs of it.
class NetCall {
 public:
  NetCall(
      Channel& channel, AnnouncementPool& pool, const Call& call, Announcing announcing, int group);
  NetCall(const NetCall&) = delete;
  NetCall& operator=(const NetCall&) = delete;
  ~NetCall();

  const Operation& operation() const { return operation_; }
  std::uint32_t sequence() const { return sequence_; }
  Channel& channel() { return channel_; }
  int rank() const { return channel_.rank(); }
  int size() const { return channel_.size(); }
  std::size_t element() const { return dtype_bytes(operation_.dtype); }

  // --- announcements

  // Tells everyone at once (Announcing::kToAll).
  void announce_to_all();
  // Those that are still on their way to the others.
  RequestSet& announcements() { return sends_; }
  // This rank's, as bytes; and one that has come.
  std::span<const std::byte> mine() const;
  void take(int rank, std::span<const std::byte> announcement);
  bool has(int rank) const { return peers_[static_cast<std::size_t>(rank)].known; }
  std::size_t most_announcement_bytes() const { return pool_.bytes(); }

  CallFacts facts(int rank) const;
  // Of the call that this one is a part of, where there is one: what the user made.
  CallFacts whole_facts(int rank) const;
  std::span<const Range> absent(int rank) const;
  // A rank's whole input, where it travels with the announcement; null otherwise.
  const std::byte* eager(int rank) const;
  // Where element `first` of a rank's input is, in a reduction that `needs_announcements_only`.
  // `first`: of a reduce_scatter, where this rank's part begins.
  const std::byte* eager_term(int rank, std::int64_t first) const;

  // --- what follows from the operation alone

  // A rank's part of the elements (counts).
  std::int64_t count(int rank) const { return operation_.counts[static_cast<std::size_t>(rank)]; }
  std::int64_t begin(int rank) const;
  // Where it is in the output, which has all parts.
  Span part(int rank) const { return operation_.output.part(begin(rank), count(rank)); }
  // An input of this many bytes is small enough to travel with the announcement; not of reductions.
  static bool is_eager(std::size_t bytes) { return bytes <= kEagerNetBytes; }
  // All that anybody needs travels with the announcements.
  bool needs_announcements_only() const { return announcements_only_; }

  // Reduces elements `range` of the whole. `inputs`: by rank, where its element range.begin is.
  void reduce(Range range,
              std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs) const;

 private:
  friend class AllAnnounced;
  // What this rank and another tell each other.
  struct Peer {
    AnnouncementPool::Buffer heard;  // this rank's own: what it says to everyone
    AnnouncementPool::Buffer said;   // to this one alone, where inputs travel in parts
    Request receiving;
    bool known = false;
  };
  bool in_parts() const;

  Channel& channel_;
  AnnouncementPool& pool_;
  const Operation& operation_;
  std::uint32_t sequence_;
  Announcing announcing_;
  int group_;
  bool announcements_only_;
  std::vector<Peer> peers_;  // by rank
  std::size_t own_bytes_ = 0;
  RequestSet sends_;
};

// Everyone has announced the call, and all agree about it.
class AllAnnounced final : public Condition {
 public:
  AllAnnounced(NetCall& call, const NameOf& name) : call_(call), name_(name) {}
  bool ready() override;
  std::vector<int> missing() override;

 private:
  NetCall& call_;
  const NameOf& name_;
  int next_ = 0;
};

}  // namespace trireme::detail
