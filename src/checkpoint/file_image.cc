#include "checkpoint/file_image.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors_format.h"
#include "trireme/core/error.h"

namespace trireme::detail {

FileImage::FileImage(const std::string& path, const StateView& state) {
  // The widest elements first: each tensor then begins at a multiple of its element, since the
  // format leaves no gaps.
  std::vector<const StateSlice*> slices;
  for (const StateSlice& slice : state.slices) {
    if (!slice.range.empty()) {
      slices.push_back(&slice);
    }
  }
  std::stable_sort(slices.begin(), slices.end(), [&](const StateSlice* a, const StateSlice* b) {
    return dtype_bytes(state.tensors[a->tensor].dtype) >
           dtype_bytes(state.tensors[b->tensor].dtype);
  });
  std::vector<TensorEntry> entries;
  for (const StateSlice* slice : slices) {
    const StateTensor& tensor = state.tensors[slice->tensor];
    entries.push_back(
        {concat(tensor.kind, "/", tensor.name, "[", slice->range.begin, ":", slice->range.end, "]"),
         tensor.dtype,
         {slice->range.size()}});
  }
  header_ = safetensors_header(path, entries, {{"format", "trireme"}});
  size_bytes_ = header_.size();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    parts_.push_back({slices[i]->tensor, slices[i]->range, size_bytes_});
    pieces_.push_back({*slices[i], entries[i].size_bytes()});
    size_bytes_ += entries[i].size_bytes();
  }
}

std::size_t FileImage::copy_next(std::byte* to, std::size_t bytes) {
  std::size_t copied = std::min(bytes, header_.size() - header_done_);
  std::memcpy(to, header_.data() + header_done_, copied);
  header_done_ += copied;
  while (copied < bytes && next_ < pieces_.size()) {
    const Piece& piece = pieces_[next_];
    const std::size_t some = std::min(bytes - copied, piece.bytes - done_);
    piece.slice.read(done_, to + copied, some);
    copied += some;
    done_ += some;
    if (done_ == piece.bytes) {
      ++next_;
      done_ = 0;
    }
  }
  return copied;
}

}  // namespace trireme::detail
