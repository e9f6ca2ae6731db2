#include "trireme/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <map>

#include "checkpoint/block_file.h"
#include "checkpoint/convert.h"
#include "device/buffer.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::BlockFile;
using detail::concat;
using detail::Fetch;

// Those of the first ranks: a process may have about a thousand files open, of which a checkpoint
// of many ranks must not take all.
constexpr std::size_t kMostOpen = 128;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return "[" + detail::listed(shape) + "]";
}

bool is_selected(const std::string& kind, const LoadSelection& selection) {
  return selection.kinds.empty()
             ? kind != kRandomKind
             : std::ranges::find(selection.kinds, kind) != selection.kinds.end();
}

// Before int8, int16 and bool were dtypes, buffers of these were saved as bytes: uint8 with one
// more dimension.
bool saved_as_bytes(const StateTensor& wanted, const StateTensor& saved) {
  const bool newer =
      wanted.dtype == Dtype::kInt8 || wanted.dtype == Dtype::kInt16 || wanted.dtype == Dtype::kBool;
  std::vector<std::int64_t> shape = wanted.shape;
  shape.push_back(static_cast<std::int64_t>(dtype_bytes(wanted.dtype)));
  return newer && wanted.kind == kBufferKind && saved.dtype == Dtype::kUint8 &&
         saved.shape == shape && wanted.strides.empty() && saved.strides.empty();
}

// Empty where a saved tensor can become a wanted one.
std::string difference(const StateTensor& wanted, const StateTensor& saved) {
  if (saved_as_bytes(wanted, saved)) {
    return {};
  }
  if (wanted.shape != saved.shape) {
    return concat("{}: expected {}, found {}",
                  {wanted.title(), shape_text(wanted.shape), shape_text(saved.shape)});
  }
  if (!detail::can_convert(saved.dtype, wanted.dtype)) {
    return concat("{}: expected {}, found {}",
                  {wanted.title(), dtype_name(wanted.dtype), dtype_name(saved.dtype)});
  }
  return {};
}

}  // namespace

std::string LoadDifferences::to_string() const {
  std::string text;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      text += concat(text.empty() ? "" : "\n", "  ", what, name);
    }
  };
  add("missing in the checkpoint: ", missing);
  add("not expected: ", unexpected);
  add("", other_shape);
  return text;
}

class CheckpointReader::Impl {
 public:
  explicit Impl(const std::string& checkpoint)
      : path_(checkpoint), manifest_(Manifest::read(checkpoint)) {
    for (const SavedTensor& saved : manifest_.tensors) {
      tensors_[{saved.tensor.kind, saved.tensor.name}] = &saved;
    }
    std::vector<std::string> problems;
    for (const SavedFile& file : manifest_.files) {
      try {
        auto opened = std::make_unique<BlockFile>(path_, file, manifest_.block_bytes);
        if (files_.size() < kMostOpen) {
          files_.push_back(std::move(opened));
        }
      } catch (const CheckpointError& error) {
        if (problems.empty()) {
          first_ = {error.file(), error.offset()};
        }
        problems.emplace_back(error.what());
      }
    }
    if (!problems.empty()) {
      throw CheckpointError(first_.first, first_.second, detail::listed(problems, {}, "\n"));
    }
  }

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  LoadDifferences compare(const std::vector<StateTensor>& wanted,
                          const LoadSelection& selection) const {
    LoadDifferences differences;
    std::map<std::pair<std::string, std::string>, bool> seen;
    for (const StateTensor& tensor : wanted) {
      if (!is_selected(tensor.kind, selection)) {
        continue;
      }
      seen[{tensor.kind, tensor.name}] = true;
      const SavedTensor* saved = find(tensor);
      if (saved == nullptr) {
        differences.missing.push_back(tensor.title());
        continue;
      }
      const std::string other = difference(tensor, saved->tensor);
      if (!other.empty()) {
        differences.other_shape.push_back(other);
      }
    }
    for (const SavedTensor& saved : manifest_.tensors) {
      if (is_selected(saved.tensor.kind, selection) &&
          seen.count({saved.tensor.kind, saved.tensor.name}) == 0) {
        differences.unexpected.push_back(saved.tensor.title());
      }
    }
    return differences;
  }

  LoadDifferences load(const StateView& into, const LoadSelection& selection) const {
    LoadDifferences differences = compare(into.tensors, selection);
    TRIREME_CHECK(
        differences.empty() || selection.partial,
        "the checkpoint \"{}\" does not match this model and optimizer:\n{}\nload it into the "
        "model and optimizer it was saved from, or load only the weights that fit (partial)",
        {path_, differences.to_string()});
    Wanted wanted(manifest_.files.size());
    std::vector<std::pair<const StateSlice*, const SavedTensor*>> elsewhere;
    std::vector<std::pair<const StateSlice*, const SavedTensor*>> converted;
    for (const StateSlice& slice : into.slices) {
      const StateTensor& tensor = into.tensors[slice.tensor];
      const SavedTensor* saved = find(tensor);
      if (slice.range.empty() || saved == nullptr || !is_selected(tensor.kind, selection) ||
          !difference(tensor, saved->tensor).empty()) {
        continue;
      }
      const bool alike = saved->tensor.dtype == tensor.dtype && same_order(tensor, saved->tensor);
      if (slice.store != nullptr && alike) {
        elsewhere.emplace_back(&slice, saved);
      } else if (slice.store == nullptr && saved_as_bytes(tensor, saved->tensor)) {
        const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
        want(*saved, {slice.range.begin * bytes, slice.range.end * bytes}, slice.data, wanted);
      } else if (slice.store == nullptr && alike) {
        want(*saved, slice.range, slice.data, wanted);
      } else {
        converted.emplace_back(&slice, saved);
      }
    }
    fetch(std::move(wanted));
    for (const auto& [slice, saved] : elsewhere) {
      load_elsewhere(*slice, *saved);
    }
    for (const auto& [slice, saved] : converted) {
      load_converted(into.tensors[slice->tensor], *slice, *saved);
    }
    return differences;
  }

  void read(const SavedTensor& saved, std::byte* out) const {
    StateTensor plain = saved.tensor;
    plain.strides.clear();
    const StateSlice whole{0, {0, plain.numel()}, out};
    if (same_order(plain, saved.tensor)) {
      Wanted wanted(manifest_.files.size());
      want(saved, whole.range, out, wanted);
      fetch(std::move(wanted));
    } else {
      load_converted(plain, whole, saved);
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) const {
    std::vector<std::string> wrong;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
      try {
        with_file(i, [&](const BlockFile& file) {
          for (std::string& problem : file.verify()) {
            wrong.push_back(std::move(problem));
          }
        });
      } catch (const CheckpointError& error) {  // it has gone since
        wrong.emplace_back(error.what());
      }
      bytes += manifest_.files[i].size_bytes;
      if (progress) {
        progress(bytes);
      }
    }
    return wrong;
  }

 private:
  using Wanted = std::vector<std::vector<Fetch>>;  // by file

  static bool same_order(const StateTensor& a, const StateTensor& b) {
    return detail::same_order(a.shape, a.strides, b.strides);
  }

  const SavedTensor* find(const StateTensor& tensor) const {
    const auto found = tensors_.find({tensor.kind, tensor.name});
    return found == tensors_.end() ? nullptr : found->second;
  }

  static void want(const SavedTensor& saved, Range range, std::byte* to, Wanted& wanted) {
    const std::size_t element = dtype_bytes(saved.tensor.dtype);
    for (const SavedPart& part : saved.parts) {
      const Range common = intersection(part.range, range);
      if (!common.empty()) {
        wanted[part.file].push_back(
            {part.offset + static_cast<std::uint64_t>(common.begin - part.range.begin) * element,
             static_cast<std::uint64_t>(common.size()) * element,
             to + static_cast<std::size_t>(common.begin - range.begin) * element});
      }
    }
  }

  template <class Use>
  void with_file(std::size_t number, const Use& use) const {
    if (number < files_.size()) {
      use(*files_[number]);
    } else {
      use(BlockFile(path_, manifest_.files[number], manifest_.block_bytes));
    }
  }

  void fetch(Wanted wanted) const {
    for (std::size_t file = 0; file < wanted.size(); ++file) {
      if (!wanted[file].empty()) {
        with_file(file, [&](const BlockFile& it) { it.fetch(std::move(wanted[file])); });
      }
    }
  }

  // To where memory does not reach: a piece at a time.
  void load_elsewhere(const StateSlice& slice, const SavedTensor& saved) const {
    constexpr std::int64_t kPieceBytes = 16 << 20;
    const std::size_t element = dtype_bytes(saved.tensor.dtype);
    const std::int64_t most = kPieceBytes / static_cast<std::int64_t>(element);
    device::Buffer piece(static_cast<std::size_t>(std::min(most, slice.range.size())) * element);
    for (std::int64_t begin = slice.range.begin; begin < slice.range.end; begin += most) {
      const Range range{begin, std::min(begin + most, slice.range.end)};
      Wanted wanted(manifest_.files.size());
      want(saved, range, piece.data(), wanted);
      fetch(std::move(wanted));
      slice.write(static_cast<std::uint64_t>(begin - slice.range.begin) * element,
                  piece.data(),
                  static_cast<std::size_t>(range.size()) * element);
    }
  }

  // Through memory of its own: one tensor at a time.
  void load_converted(const StateTensor& tensor,
                      const StateSlice& slice,
                      const SavedTensor& saved) const {
    const std::size_t element = dtype_bytes(saved.tensor.dtype);
    const bool ordered = same_order(tensor, saved.tensor);
    const Range needed = ordered ? slice.range : Range{0, tensor.numel()};
    device::Buffer raw(static_cast<std::size_t>(needed.size()) * element);
    Wanted wanted(manifest_.files.size());
    want(saved, needed, raw.data(), wanted);
    fetch(std::move(wanted));
    if (!ordered) {
      device::Buffer in_order(static_cast<std::size_t>(slice.range.size()) * element);
      detail::reorder(tensor.shape,
                      element,
                      saved.tensor.strides,
                      raw.data(),
                      tensor.strides,
                      slice.range,
                      in_order.data());
      raw = std::move(in_order);
    }
    device::Buffer values;
    if (slice.store != nullptr) {
      values =
          device::Buffer(static_cast<std::size_t>(slice.range.size()) * dtype_bytes(tensor.dtype));
    }
    std::byte* const to = slice.store != nullptr ? values.data() : slice.data;
    detail::convert(saved.tensor.dtype, raw.data(), tensor.dtype, to, slice.range.size());
    if (slice.store != nullptr) {
      slice.write(0, values.data(), values.size_bytes());
    }
  }

  std::string path_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, const SavedTensor*> tensors_;
  std::vector<std::unique_ptr<BlockFile>> files_;  // the first; others are opened when needed
  std::pair<std::string, std::int64_t> first_;
};

CheckpointReader::CheckpointReader(const std::string& checkpoint)
    : impl_(std::make_unique<Impl>(checkpoint)) {}
CheckpointReader::~CheckpointReader() = default;
const std::string& CheckpointReader::path() const {
  return impl_->path();
}
const Manifest& CheckpointReader::manifest() const {
  return impl_->manifest();
}
LoadDifferences CheckpointReader::compare(const std::vector<StateTensor>& wanted,
                                          const LoadSelection& selection) const {
  return impl_->compare(wanted, selection);
}
LoadDifferences CheckpointReader::load(const StateView& into,
                                       const LoadSelection& selection) const {
  return impl_->load(into, selection);
}
void CheckpointReader::read(const SavedTensor& tensor, std::byte* out) const {
  impl_->read(tensor, out);
}
std::vector<std::string> CheckpointReader::verify(
    const std::function<void(std::uint64_t bytes)>& progress) const {
  return impl_->verify(progress);
}

}  // namespace trireme
