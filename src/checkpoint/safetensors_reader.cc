#include <algorithm>
#include <cerrno>
#include <unordered_map>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>

#include "checkpoint/header_members.h"
#include "checkpoint/safetensors_format.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/shell_text.h"

namespace trireme {
namespace {

using Json = nlohmann::json;
using detail::concat;
using detail::errno_text;
using detail::kLargestNumel;
using detail::kLengthBytes;
using detail::kLongestHeader;
using detail::kMetadata;

// What stands where a number was expected; of anything else only the kind, which is short.
std::string shown(const Json& value) {
  return value.is_number() ? value.dump() : value.type_name();
}

}  // namespace

class SafetensorsFile::Impl {
 public:
  using Skipped = std::function<bool(const std::string& name)>;

  Impl(const std::string& path, Skipped skipped) : path_(path), skipped_(std::move(skipped)) {
    // Not blocking, which a pipe nobody writes to would.
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.valid()) {
      fail(-1, concat("expected a file in safetensors' format, found: ", errno_text(errno)));
    }
    struct stat status {};
    fstat(file.get(), &status);
    if (!S_ISREG(status.st_mode)) {
      fail(-1, "expected a file in safetensors' format, found a folder or device");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ < kLengthBytes) {
      fail(0, concat("expected 8 bytes with the length of the header, found ", size_));
    }
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED) {
      fail(-1, concat("the file could not be mapped: ", errno_text(errno)));
    }
    data_ = static_cast<const std::byte*>(mapped);
    try {
      read_header();
    } catch (...) {
      munmap(mapped, size_);
      throw;
    }
  }
  ~Impl() { munmap(const_cast<std::byte*>(data_), size_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  struct Place {
    TensorEntry entry;
    std::size_t begin;  // in the file
    bool skipped;
  };
  const std::vector<TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  ConstSpan tensor(const std::string& name) const {
    if (const auto found = by_name_.find(name); found != by_name_.end()) {
      const Place& place = places_[found->second];
      return {data_ + place.begin, place.entry.numel(), place.entry.dtype};
    }
    throw ConfigError(
        concat("\"{}\" has no tensor {}; its first one is {}",
               {path_, name, entries_.empty() ? "(it has none)" : entries_.front().name}));
  }

 private:
  [[noreturn]] void fail(std::int64_t offset, const std::string& message) const {
    throw DataError(
        path_,
        offset,
        concat("\"", path_, "\"", offset >= 0 ? concat(", byte ", offset) : "", ": ", message));
  }

  void read_header() {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= static_cast<std::uint64_t>(data_[i]) << (8 * i);
    }
    constexpr std::uint64_t kZip = 0x04034b50;  // "PK\3\4"
    if ((length & 0xffffffffU) == kZip) {
      fail(0,
           concat("expected a safetensors file, found an archive of torch: trireme ckpt import "
                  "{} FOLDER first",
                  {detail::shell_text({path_})}));
    }
    const std::uint64_t most = std::min<std::uint64_t>(kLongestHeader, size_ - kLengthBytes);
    if (length > most) {
      fail(0,
           concat("expected the length of the header, here at most {} bytes, found {}: the file is "
                  "truncated (copy or download it again), or not a safetensors file",
                  {most, length}));
    }
    const auto* text = reinterpret_cast<const char*>(data_ + kLengthBytes);
    const auto refuse = [this](std::size_t at, const std::string& message) {
      fail(static_cast<std::int64_t>(kLengthBytes + at), message);
    };
    for (const auto& [name, item] :
         detail::read_members({text, static_cast<std::size_t>(length)}, refuse)) {
      if (name == kMetadata) {
        read_metadata(item);
      } else {
        places_.push_back(read_entry(name, item, kLengthBytes + length));
      }
    }
    // Stable: empty tensors of one place stay in the order of the header.
    std::stable_sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.entry.numel() < b.entry.numel();
    });
    std::size_t at = kLengthBytes + length;
    for (const Place& place : places_) {
      if (place.begin != at) {
        fail(static_cast<std::int64_t>(at),
             concat("expected the bytes of tensor {}, which begin at {}",
                    {place.entry.name, place.begin}));
      }
      at += place.entry.size_bytes();
      if (!place.skipped) {
        entries_.push_back(place.entry);
      }
    }
    if (at != size_) {
      fail(static_cast<std::int64_t>(std::min(at, size_)),
           concat("expected a file of {} bytes, found {}{}",
                  {at, size_, at > size_ ? ": it is truncated; copy or download it again" : ""}));
    }
    std::erase_if(places_, [](const Place& place) { return place.skipped; });
    for (std::size_t i = 0; i < places_.size(); ++i) {
      by_name_.emplace(places_[i].entry.name, i);
    }
  }

  void read_metadata(const Json& item) {
    if (item.is_null()) {
      return;
    }
    const auto refuse = [&](const std::string& found) {
      fail(kLengthBytes,
           concat(kMetadata, " of the header: expected texts by name, found ", found));
    };
    if (!item.is_object()) {
      refuse(item.type_name());
    }
    for (const auto& [key, value] : item.items()) {
      if (!value.is_string()) {
        refuse(concat("a ", value.type_name(), " for \"", key, "\""));
      }
      metadata_[key] = value.get<std::string>();
    }
  }

  Place read_entry(const std::string& name, const Json& item, std::size_t first) const {
    const auto broken = [&](const std::string& what) {
      fail(kLengthBytes, concat("tensor ", name, " of the header: ", what));
    };
    if (!item.is_object() || !item.contains("dtype") || !item.contains("shape") ||
        !item.contains("data_offsets") || !item["shape"].is_array() ||
        !item["data_offsets"].is_array() || item["data_offsets"].size() != 2) {
      broken("expected dtype, shape and data_offsets");
    }
    TensorEntry entry;
    entry.name = name;
    const std::string dtype =
        item["dtype"].is_string() ? item["dtype"].get<std::string>() : shown(item["dtype"]);
    const bool skipped = skipped_ && skipped_(name);
    const std::optional<Dtype> known = detail::dtype_called(dtype);
    if (!known && !skipped) {
      broken(concat(
          "expected a dtype of F32, F64, F16, BF16, I64, I32, I16, I8, U8 or BOOL, found ", dtype));
    }
    entry.dtype = known.value_or(Dtype::kUint8);
    std::uint64_t numel = 1;
    for (const Json& size : item["shape"]) {
      if (!size.is_number_unsigned()) {
        broken(concat("expected sizes of 0 or more, found ", shown(size)));
      }
      entry.shape.push_back(size.get<std::int64_t>());
      if (size.get<std::uint64_t>() > kLargestNumel ||
          __builtin_mul_overflow(numel, size.get<std::uint64_t>(), &numel) ||
          numel > kLargestNumel) {
        broken("its shape is larger than any memory");
      }
    }
    if (!item["data_offsets"][0].is_number_unsigned() ||
        !item["data_offsets"][1].is_number_unsigned()) {
      broken("expected two offsets of 0 or more");
    }
    const auto begin = item["data_offsets"][0].get<std::uint64_t>();
    const auto end = item["data_offsets"][1].get<std::uint64_t>();
    if (skipped && end >= begin && end - begin <= kLargestNumel) {
      entry.dtype = Dtype::kUint8;  // bytes that are there, whatever they mean
      entry.shape = {static_cast<std::int64_t>(end - begin)};
    }
    if (end < begin || end - begin != entry.size_bytes()) {
      broken(concat("expected {} bytes for its shape, found offsets {} and {}",
                    {entry.size_bytes(), begin, end}));
    }
    if (end > size_ - first) {
      fail(static_cast<std::int64_t>(size_),
           concat("expected tensor {} up to byte {}, found the end of the file: it is truncated; "
                  "copy or download it again",
                  {name, first + end}));
    }
    return {entry, first + begin, skipped};
  }

  std::string path_;
  Skipped skipped_;
  std::size_t size_ = 0;
  const std::byte* data_ = nullptr;
  std::vector<Place> places_;
  std::unordered_map<std::string, std::size_t> by_name_;  // of places_
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

SafetensorsFile::SafetensorsFile(const std::string& path,
                                 const std::function<bool(const std::string& name)>& skipped)
    : impl_(std::make_unique<Impl>(path, skipped)) {}
SafetensorsFile::~SafetensorsFile() = default;
const std::vector<TensorEntry>& SafetensorsFile::entries() const {
  return impl_->entries();
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->metadata();
}
ConstSpan SafetensorsFile::tensor(const std::string& name) const {
  return impl_->tensor(name);
}

}  // namespace trireme
