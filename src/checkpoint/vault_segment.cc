#include "checkpoint/vault_segment.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kPage = 4096;
// A tensor's beginning: the kernel copies whole lines of the cache.
constexpr std::size_t kPartAlignment = 64;
// Notes become longer as training goes on.
constexpr std::size_t kLeastNotes = 64 << 10;

std::size_t bytes_of(const StateView& state, const StateSlice& slice) {
  return static_cast<std::size_t>(slice.range.size()) *
         dtype_bytes(state.tensors[slice.tensor].dtype);
}

std::string index_text(const StateView& state) {
  Json tensors = Json::array();
  for (const StateTensor& tensor : state.tensors) {
    tensors.push_back(
        {tensor.kind, tensor.name, static_cast<int>(tensor.dtype), tensor.shape, tensor.strides});
  }
  Json slices = Json::array();
  for (const StateSlice& slice : state.slices) {
    slices.push_back({slice.tensor, slice.range.begin, slice.range.end});
  }
  return Json{{"tensors", tensors}, {"slices", slices}}.dump();
}

struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

// One processor does not use all of a machine's memory: a few threads copy what takes long. Where
// there are none to be had, fewer do.
void copy_together(const std::vector<Copy>& copies) {
  constexpr std::size_t kPiece = 1 << 20;
  constexpr std::size_t kWorthAThread = 16 << 20;
  constexpr std::size_t kMostThreads = 3;
  std::vector<Copy> pieces;
  std::size_t bytes = 0;
  for (const Copy& copy : copies) {
    for (std::size_t at = 0; at < copy.bytes; at += kPiece) {
      pieces.push_back({copy.to + at, copy.from + at, std::min(kPiece, copy.bytes - at)});
    }
    bytes += copy.bytes;
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
  };
  std::vector<std::jthread> threads;
  try {
    while (threads.size() < std::min(kMostThreads, bytes / kWorthAThread)) {
      threads.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // the limit on processes
  }
  work();
}

std::size_t segment_bytes(std::size_t index, std::size_t notes, std::size_t state, int places) {
  return kPage + device::round_up(index, kPage) +
         static_cast<std::size_t>(places) * (notes + device::round_up(state, kPage));
}

}  // namespace

VaultLayout VaultLayout::of(const StateView& state, const Notes& notes, int places) {
  VaultLayout layout{.index = index_text(state), .places = places};
  layout.notes = device::round_up(
      std::max(kLeastNotes, 2 * Json(notes).dump().size() + layout.index.size()), kPage);
  for (const StateSlice& slice : state.slices) {
    layout.state += device::round_up(bytes_of(state, slice), kPartAlignment);
  }
  return layout;
}

std::size_t VaultLayout::bytes() const {
  return segment_bytes(index.size(), notes, state, places);
}

StateView parse_vault_index(const std::string& text) {
  const Json json = Json::parse(text);
  StateView view;
  for (const Json& each : json.at("tensors")) {
    view.tensors.push_back({each.at(0),
                            each.at(1),
                            static_cast<Dtype>(each.at(2).get<int>()),
                            each.at(3).get<std::vector<std::int64_t>>(),
                            each.at(4).get<std::vector<std::int64_t>>()});
  }
  for (const Json& each : json.at("slices")) {
    view.slices.push_back({each.at(0), {each.at(1), each.at(2)}, nullptr});
  }
  return view;
}

Notes parse_vault_notes(const std::string& text) {
  return Json::parse(text).get<Notes>();
}

std::vector<std::size_t> vault_offsets(const StateView& index) {
  std::vector<std::size_t> offsets;
  std::size_t at = 0;
  for (const StateSlice& slice : index.slices) {
    offsets.push_back(at);
    at += device::round_up(bytes_of(index, slice), kPartAlignment);
  }
  return offsets;
}

std::byte* VaultSegment::place_at(int place) const {
  const Header& h = header();
  return mapping_->data() + kPage + device::round_up(h.index_bytes, kPage) +
         static_cast<std::size_t>(place) *
             (h.notes_capacity + device::round_up(h.state_bytes, kPage));
}

std::shared_ptr<VaultSegment> VaultSegment::make(const VaultOwner& owner,
                                                 const VaultLayout& layout) {
  TRIREME_ASSERT(layout.places <= kMostPlaces, "a vault with ", layout.places, " places");
  const std::size_t size = layout.bytes();
  FileDescriptor memory = device::create_memory(size);
  device::reserve_pages(memory.get(), 0, size);
  auto mapping = device::Segment::map(memory, size);
  std::shared_ptr<VaultSegment> segment(new VaultSegment(std::move(memory), std::move(mapping)));
  Header& h = segment->header();
  std::memcpy(h.magic, kMagic, sizeof(h.magic));
  h.owner = owner;
  h.index_bytes = layout.index.size();
  h.notes_capacity = layout.notes;
  h.state_bytes = layout.state;
  h.places_count = layout.places;
  for (Place& place : h.places) {
    place.step.store(kNone, std::memory_order_relaxed);
  }
  std::memcpy(segment->mapping_->data() + kPage, layout.index.data(), layout.index.size());
  h.complete.store(1, std::memory_order_release);
  segment->read_index();
  return segment;
}

std::shared_ptr<VaultSegment> VaultSegment::open(const FileDescriptor& memory) {
  struct stat status {};
  if (fstat(memory.get(), &status) != 0 || status.st_size < static_cast<off_t>(kPage)) {
    return nullptr;
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  std::shared_ptr<VaultSegment> segment(
      new VaultSegment(FileDescriptor(), device::Segment::map(memory, size)));
  const Header& h = segment->header();
  if (std::memcmp(h.magic, kMagic, sizeof(h.magic)) != 0 ||
      h.complete.load(std::memory_order_acquire) != 1 || h.index_bytes > size ||
      h.notes_capacity > size || h.state_bytes > size || h.places_count < 1 ||
      h.places_count > kMostPlaces ||
      segment_bytes(h.index_bytes, h.notes_capacity, h.state_bytes, h.places_count) != size) {
    return nullptr;
  }
  segment->read_index();
  return segment;
}

void VaultSegment::read_index() {
  index_ = parse_vault_index(index_text());
  offsets_ = vault_offsets(index_);
}

std::string VaultSegment::index_text() const {
  return {reinterpret_cast<const char*>(mapping_->data() + kPage), header().index_bytes};
}

const VaultOwner& VaultSegment::owner() const {
  return header().owner;
}

std::map<std::int64_t, int> VaultSegment::versions() const {
  std::map<std::int64_t, int> found;
  for (int place = 0; place < header().places_count; ++place) {
    const std::int64_t step = header().places[place].step.load(std::memory_order_acquire);
    if (step != kNone) {
      found[step] = place;
    }
  }
  return found;
}

bool VaultSegment::has_index(const StateView& state) const {
  return index_.tensors == state.tensors &&
         std::equal(index_.slices.begin(),
                    index_.slices.end(),
                    state.slices.begin(),
                    state.slices.end(),
                    [](const StateSlice& a, const StateSlice& b) {
                      return a.tensor == b.tensor && a.range.begin == b.range.begin &&
                             a.range.end == b.range.end;
                    });
}

bool VaultSegment::has_room_for(const StateView& state, const Notes& notes) const {
  return Json(notes).dump().size() <= header().notes_capacity && has_index(state);
}

int VaultSegment::begin(std::size_t notes_bytes, std::int64_t kept) {
  Header& h = header();
  const std::map<std::int64_t, int> whole = versions();
  int oldest = -1;
  for (int place = 0; place < h.places_count; ++place) {
    const std::int64_t step = h.places[place].step.load();
    const bool stays = step != kNone && (step == kept || step == whole.rbegin()->first);
    if (!stays && (oldest < 0 || step < h.places[oldest].step.load())) {
      oldest = place;
    }
  }
  TRIREME_ASSERT(oldest >= 0, "a vault has no place for another version");
  h.places[oldest].step.store(kNone, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  h.places[oldest].notes_bytes = notes_bytes;
  return oldest;
}

void VaultSegment::finish(int place, std::int64_t step) {
  header().places[place].step.store(step, std::memory_order_release);
}

bool VaultSegment::save(std::int64_t step,
                        const StateView& state,
                        const Notes& notes,
                        std::int64_t kept) {
  const std::string text = Json(notes).dump();
  if (text.size() > header().notes_capacity || !has_index(state)) {
    return false;
  }
  const int place = begin(text.size(), kept);
  std::memcpy(notes_text(place).data(), text.data(), text.size());
  std::vector<Copy> copies;
  copies.reserve(state.slices.size());
  for (std::size_t i = 0; i < state.slices.size(); ++i) {
    copies.push_back({state_bytes(place).data() + offsets_[i],
                      state.slices[i].data,
                      bytes_of(state, state.slices[i])});
  }
  copy_together(copies);
  finish(place, step);
  return true;
}

std::span<std::byte> VaultSegment::notes_text(int place) const {
  return {place_at(place), header().places[place].notes_bytes};
}

std::span<std::byte> VaultSegment::state_bytes(int place) const {
  return {place_at(place) + header().notes_capacity, header().state_bytes};
}

Notes VaultSegment::notes(int place) const {
  const auto text = notes_text(place);
  return parse_vault_notes({reinterpret_cast<const char*>(text.data()), text.size()});
}

StateView VaultSegment::state(int place) const {
  StateView view = index_;
  for (std::size_t i = 0; i < view.slices.size(); ++i) {
    view.slices[i].data = state_bytes(place).data() + offsets_[i];
  }
  return view;
}

}  // namespace trireme::detail
