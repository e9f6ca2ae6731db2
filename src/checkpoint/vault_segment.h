#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

// How long the parts of a segment are.
struct VaultLayout {
  std::string index;      // what is where in a version
  std::size_t notes = 0;  // room for them
  std::size_t state = 0;
  int places = 2;  // for versions

  static VaultLayout of(const StateView& state, const Notes& notes, int places = 2);
  std::size_t bytes() const;
};

// What they say, from their texts. The data of an index is not known: offsets are where each slice
// is in a version's state.
Notes parse_vault_notes(const std::string& text);
StateView parse_vault_index(const std::string& text);
std::vector<std::size_t> vault_offsets(const StateView& index);

// One rank's part of a vault: a header, an index that says what is where, and places for versions,
// each with its notes.
class VaultSegment {
 public:
  static constexpr std::int64_t kNone = -1;

  // Throws MemoryError.
  static std::shared_ptr<VaultSegment> make(const VaultOwner& owner, const VaultLayout& layout);
  // Of a process that has ended, perhaps in the middle of anything; null: it is none, or was never
  // complete.
  static std::shared_ptr<VaultSegment> open(const FileDescriptor& memory);

  const FileDescriptor& memory() const { return memory_; }
  const VaultOwner& owner() const;
  std::string index_text() const;
  // The steps whose versions are whole, with their places.
  std::map<std::int64_t, int> versions() const;

  bool has_room_for(const StateView& state, const Notes& notes) const;
  // False where it has no room for such a version. The newest one stays, and that of step `kept`.
  bool save(std::int64_t step,
            const StateView& state,
            const Notes& notes,
            std::int64_t kept = kNone);
  Notes notes(int place) const;
  // The state as it was when the version was saved: its slices are in this memory.
  StateView state(int place) const;

  // --- versions as they are, for copies elsewhere

  std::span<std::byte> notes_text(int place) const;
  std::span<std::byte> state_bytes(int place) const;
  // A place for a version, where none is found before it is finished.
  int begin(std::size_t notes_bytes, std::int64_t kept = kNone);
  void finish(int place, std::int64_t step);

 private:
  static constexpr int kMostPlaces = 128;  // whose header is in a page
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
    std::int32_t places_count;
    std::atomic<std::uint32_t> complete;  // the header and the index are
    Place places[kMostPlaces];
  };
  static constexpr char kMagic[9] = "TRIREMEV";

  VaultSegment(FileDescriptor memory, std::shared_ptr<device::Segment> mapping)
      : memory_(std::move(memory)), mapping_(std::move(mapping)) {}

  Header& header() const { return *reinterpret_cast<Header*>(mapping_->data()); }
  std::byte* place_at(int place) const;  // its notes, then its state
  void read_index();
  bool has_index(const StateView& state) const;

  FileDescriptor memory_;
  std::shared_ptr<device::Segment> mapping_;
  StateView index_;
  std::vector<std::size_t> offsets_;  // of its slices
};

}  // namespace trireme::detail
