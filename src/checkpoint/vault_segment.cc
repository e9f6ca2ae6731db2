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
constexpr std::size_t kAlignment = 64;
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

StateView parse_index(const std::string& text, std::byte* data) {
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
    view.slices.push_back({each.at(0), {each.at(1), each.at(2)}, data});
    data += device::round_up(bytes_of(view, view.slices.back()), kAlignment);
  }
  return view;
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

std::size_t room_for(const Notes& notes, const std::string& index) {
  return device::round_up(std::max(kLeastNotes, 2 * Json(notes).dump().size() + index.size()),
                          kPage);
}

std::size_t state_bytes(const StateView& state) {
  std::size_t bytes = 0;
  for (const StateSlice& slice : state.slices) {
    bytes += device::round_up(bytes_of(state, slice), kAlignment);
  }
  return bytes;
}

}  // namespace

std::size_t VaultSegment::size_of(std::size_t index, std::size_t notes, std::size_t state) {
  return kPage + device::round_up(index, kPage) + 2 * (notes + device::round_up(state, kPage));
}

std::byte* VaultSegment::place_at(int place) const {
  const Header& h = header();
  return mapping_->data() + kPage + device::round_up(h.index_bytes, kPage) +
         static_cast<std::size_t>(place) *
             (h.notes_capacity + device::round_up(h.state_bytes, kPage));
}

std::size_t VaultSegment::bytes_for(const StateView& state, const Notes& notes) {
  const std::string index = index_text(state);
  return size_of(index.size(), room_for(notes, index), state_bytes(state));
}

std::shared_ptr<VaultSegment> VaultSegment::make(const VaultOwner& owner,
                                                 const StateView& state,
                                                 const Notes& notes) {
  const std::string index = index_text(state);
  const std::size_t room = room_for(notes, index);
  const std::size_t bytes = state_bytes(state);
  const std::size_t size = size_of(index.size(), room, bytes);
  FileDescriptor memory = device::create_memory(size);
  device::reserve_pages(memory.get(), 0, size);
  auto mapping = device::Segment::map(memory, size);
  std::shared_ptr<VaultSegment> segment(new VaultSegment(std::move(memory), std::move(mapping)));
  Header& h = segment->header();
  std::memcpy(h.magic, kMagic, sizeof(h.magic));
  h.owner = owner;
  h.index_bytes = index.size();
  h.notes_capacity = room;
  h.state_bytes = bytes;
  for (Place& place : h.places) {
    place.step.store(kNone, std::memory_order_relaxed);
  }
  std::memcpy(segment->mapping_->data() + kPage, index.data(), index.size());
  h.complete.store(1, std::memory_order_release);
  segment->index_ = parse_index(index, segment->place_at(0) + room);
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
      h.notes_capacity > size || h.state_bytes > size ||
      size_of(h.index_bytes, h.notes_capacity, h.state_bytes) != size) {
    return nullptr;
  }
  const auto* index = reinterpret_cast<const char*>(segment->mapping_->data() + kPage);
  segment->index_ =
      parse_index(std::string(index, h.index_bytes), segment->place_at(0) + h.notes_capacity);
  return segment;
}

const VaultOwner& VaultSegment::owner() const {
  return header().owner;
}

std::map<std::int64_t, int> VaultSegment::versions() const {
  std::map<std::int64_t, int> found;
  for (int place = 0; place < 2; ++place) {
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

bool VaultSegment::save(std::int64_t step, const StateView& state, const Notes& notes) {
  Header& h = header();
  const std::string text = Json(notes).dump();
  if (text.size() > h.notes_capacity || !has_index(state)) {
    return false;
  }
  // Never the newest one.
  const int place = h.places[0].step.load() > h.places[1].step.load() ? 1 : 0;
  h.places[place].step.store(kNone, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::byte* at = place_at(place);
  std::memcpy(at, text.data(), text.size());
  h.places[place].notes_bytes = text.size();
  const std::ptrdiff_t offset = at - place_at(0);
  std::vector<Copy> copies;
  copies.reserve(state.slices.size());
  for (std::size_t i = 0; i < state.slices.size(); ++i) {
    copies.push_back(
        {index_.slices[i].data + offset, state.slices[i].data, bytes_of(state, state.slices[i])});
  }
  copy_together(copies);
  h.places[place].step.store(step, std::memory_order_release);
  return true;
}

Notes VaultSegment::notes(int place) const {
  const auto* text = reinterpret_cast<const char*>(place_at(place));
  return Json::parse(std::string(text, header().places[place].notes_bytes)).get<Notes>();
}

StateView VaultSegment::state(int place) const {
  StateView view = index_;
  for (StateSlice& slice : view.slices) {
    slice.data += place_at(place) - place_at(0);
  }
  return view;
}

}  // namespace trireme::detail
