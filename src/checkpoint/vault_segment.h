#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "device/host/segment.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// Who saves into a segment of a vault.
struct VaultOwner {
  std::int64_t epoch = 0;
  std::int64_t use = 0;  // which vault of the world it is
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
};

// One rank's part of a vault: a header, an index that says what is where, and two places for
// versions, each with its notes.
class VaultSegment {
 public:
  // What make() takes.
  static std::size_t bytes_for(const StateView& state, const Notes& notes);
  // With room for versions like this one. Throws MemoryError.
  static std::shared_ptr<VaultSegment> make(const VaultOwner& owner,
                                            const StateView& state,
                                            const Notes& notes);
  // Of a process that has ended, perhaps in the middle of anything; null: it is none, or was never
  // complete.
  static std::shared_ptr<VaultSegment> open(const FileDescriptor& memory);

  const FileDescriptor& memory() const { return memory_; }
  const VaultOwner& owner() const;
  // The steps whose versions are whole, with their places.
  std::map<std::int64_t, int> versions() const;

  // False where it has no room for such a version.
  bool save(std::int64_t step, const StateView& state, const Notes& notes);
  Notes notes(int place) const;
  // The state as it was when the version was saved: its slices are in this memory.
  StateView state(int place) const;

 private:
  struct Place {
    std::atomic<std::int64_t> step;  // kNone while it is written
    std::uint64_t notes_bytes;
  };
  struct Header {
    char magic[8];
    VaultOwner owner;
    std::uint64_t index_bytes;
    std::uint64_t notes_capacity;
    std::uint64_t state_bytes;
    std::atomic<std::uint32_t> complete;  // the header and the index are
    Place places[2];
  };
  static constexpr std::int64_t kNone = -1;
  static constexpr char kMagic[9] = "TRIREMEV";

  VaultSegment(FileDescriptor memory, std::shared_ptr<device::Segment> mapping)
      : memory_(std::move(memory)), mapping_(std::move(mapping)) {}

  static std::size_t size_of(std::size_t index, std::size_t notes, std::size_t state);
  Header& header() const { return *reinterpret_cast<Header*>(mapping_->data()); }
  std::byte* place_at(int place) const;  // its notes, then its state
  bool has_index(const StateView& state) const;

  FileDescriptor memory_;
  std::shared_ptr<device::Segment> mapping_;
  StateView index_;  // its slices point into the first place
};

}  // namespace trireme::detail
