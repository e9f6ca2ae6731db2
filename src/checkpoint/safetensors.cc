#include "trireme/checkpoint/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using detail::concat;
using detail::errno_text;

constexpr std::size_t kLengthBytes = 8;
// The reference implementation refuses larger headers.
constexpr std::uint64_t kLongestHeader = 100'000'000;
// The one name in a header that is no tensor's.
constexpr const char* kMetadata = "__metadata__";
constexpr std::size_t kAlignment = 8;  // of the first tensor; the header is padded with spaces

// More elements than any memory has; their bytes are still a number of 64 bits.
constexpr std::uint64_t kLargestNumel = std::uint64_t{1} << 60;

struct DtypeName {
  Dtype dtype;
  const char* name;
};
constexpr DtypeName kDtypeNames[] = {{Dtype::kFloat32, "F32"},
                                     {Dtype::kFloat64, "F64"},
                                     {Dtype::kFloat16, "F16"},
                                     {Dtype::kBFloat16, "BF16"},
                                     {Dtype::kInt32, "I32"},
                                     {Dtype::kInt64, "I64"},
                                     {Dtype::kUint8, "U8"}};

const char* file_name_of(Dtype dtype) {
  for (const DtypeName& entry : kDtypeNames) {
    if (entry.dtype == dtype) {
      return entry.name;
    }
  }
  throw InternalError("a dtype without a name in safetensors");
}

void write_all(int fd, const std::string& path, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      throw Error(concat("\"",
                         path,
                         "\" could not be written: ",
                         errno_text(errno),
                         "; ",
                         bytes,
                         " bytes of this part were left: make room, or choose another folder"));
    }
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace

std::int64_t TensorEntry::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    product *= size;
  }
  return product;
}

class SafetensorsWriter::Impl {
 public:
  Impl(const std::string& path,
       std::vector<TensorEntry> entries,
       const std::map<std::string, std::string>& metadata)
      : path_(path),
        partial_(concat(path, ".partial-", getpid())),
        entries_(std::move(entries)),
        file_(open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (!file_.valid()) {
      throw Error(concat("\"", partial_, "\" could not be created: ", errno_text(errno)));
    }
    try {
      write_header(metadata);
    } catch (...) {
      unlink(partial_.c_str());
      throw;
    }
  }

  ~Impl() {
    if (!finished_) {
      unlink(partial_.c_str());
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void write(const ConstSpan& values) {
    TRIREME_CHECK(next_ < entries_.size(), "\"", path_, "\": all its tensors are written already");
    const TensorEntry& entry = entries_[next_];
    TRIREME_CHECK(values.dtype() == entry.dtype && values.numel() == entry.numel(),
                  "\"",
                  path_,
                  "\": expected tensor ",
                  entry.name,
                  " (",
                  dtype_name(entry.dtype),
                  " x ",
                  entry.numel(),
                  "), found ",
                  dtype_name(values.dtype()),
                  " x ",
                  values.numel());
    write_all(file_.get(), path_, values.bytes(), values.size_bytes());
    ++next_;
  }

  void finish() {
    TRIREME_CHECK(next_ == entries_.size(),
                  "\"",
                  path_,
                  "\": ",
                  entries_.size() - next_,
                  " tensors are missing, the next is ",
                  entries_[std::min(next_, entries_.size() - 1)].name);
    if (fsync(file_.get()) != 0) {
      throw Error(concat("\"", path_, "\" could not be written to disk: ", errno_text(errno)));
    }
    file_.reset();
    if (rename(partial_.c_str(), path_.c_str()) != 0) {
      throw Error(concat("\"", partial_, "\" could not be renamed: ", errno_text(errno)));
    }
    finished_ = true;
    // The name is in the folder, which is a file, too.
    const auto folder = std::filesystem::path(path_).parent_path();
    const FileDescriptor handle(
        open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (handle.valid()) {
      fsync(handle.get());
    }
  }

 private:
  void write_header(const std::map<std::string, std::string>& metadata) {
    Json header = Json::object();
    if (!metadata.empty()) {
      header[kMetadata] = metadata;
    }
    std::size_t offset = 0;
    for (const TensorEntry& entry : entries_) {
      TRIREME_CHECK(!header.contains(entry.name), "two tensors are called ", entry.name);
      TRIREME_CHECK(entry.name != kMetadata, "a tensor cannot be called ", kMetadata);
      TRIREME_CHECK(
          std::all_of(
              entry.shape.begin(), entry.shape.end(), [](std::int64_t size) { return size >= 0; }),
          "tensor ",
          entry.name,
          " has a negative size");
      const std::size_t end = offset + entry.size_bytes();
      header[entry.name] = {{"dtype", file_name_of(entry.dtype)},
                            {"shape", entry.shape},
                            {"data_offsets", {offset, end}}};
      offset = end;
    }
    std::string text;
    try {
      text = header.dump();
    } catch (const Json::type_error& error) {
      throw ConfigError(concat("\"", path_, "\": names are expected in UTF-8: ", error.what()));
    }
    text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
    std::uint8_t length[kLengthBytes];
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
    }
    write_all(file_.get(), path_, length, sizeof(length));
    write_all(file_.get(), path_, text.data(), text.size());
  }

  std::string path_;
  std::string partial_;
  std::vector<TensorEntry> entries_;
  FileDescriptor file_;
  std::size_t next_ = 0;
  bool finished_ = false;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::vector<TensorEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : impl_(std::make_unique<Impl>(path, std::move(entries), metadata)) {}
SafetensorsWriter::~SafetensorsWriter() = default;
void SafetensorsWriter::write(const ConstSpan& values) {
  impl_->write(values);
}
void SafetensorsWriter::finish() {
  impl_->finish();
}

class SafetensorsFile::Impl {
 public:
  explicit Impl(const std::string& path) : path_(path) {
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
  };
  const std::vector<TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  ConstSpan tensor(const std::string& name) const {
    for (const Place& place : places_) {
      if (place.entry.name == name) {
        return {data_ + place.begin, place.entry.numel(), place.entry.dtype};
      }
    }
    throw ConfigError(concat("\"",
                             path_,
                             "\" has no tensor ",
                             name,
                             "; its first one is ",
                             entries_.empty() ? "(it has none)" : entries_.front().name));
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
    if (length > kLongestHeader || length > size_ - kLengthBytes) {
      fail(0,
           concat("expected the length of the header, at most the file's ",
                  size_ - kLengthBytes,
                  " bytes, found ",
                  length,
                  ": the file is truncated, or no safetensors file"));
    }
    const auto* text = reinterpret_cast<const char*>(data_ + kLengthBytes);
    Json header;
    try {
      header = Json::parse(text, text + length);
    } catch (const Json::parse_error& error) {
      // It counts from 1.
      fail(static_cast<std::int64_t>(kLengthBytes + std::max<std::size_t>(error.byte, 1) - 1),
           concat("expected the JSON header: ", error.what()));
    } catch (const Json::out_of_range& error) {
      fail(kLengthBytes, concat("expected the JSON header: ", error.what()));
    }
    if (!header.is_object()) {
      fail(kLengthBytes, "expected the JSON header to be an object");
    }
    for (const auto& [name, item] : header.items()) {
      if (name == kMetadata) {
        read_metadata(item);
      } else {
        places_.push_back(read_entry(name, item, kLengthBytes + length));
      }
    }
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.entry.numel() < b.entry.numel();
    });
    std::size_t at = kLengthBytes + length;
    for (const Place& place : places_) {
      if (place.begin != at) {
        fail(static_cast<std::int64_t>(at),
             concat("expected the bytes of tensor ",
                    place.entry.name,
                    ", which begin at ",
                    place.begin));
      }
      at += place.entry.size_bytes();
      entries_.push_back(place.entry);
    }
    if (at != size_) {
      fail(static_cast<std::int64_t>(std::min(at, size_)),
           concat("expected a file of ",
                  at,
                  " bytes, found ",
                  size_,
                  at > size_ ? ": it is truncated" : ""));
    }
  }

  void read_metadata(const Json& item) {
    const bool texts =
        std::all_of(item.begin(), item.end(), [](const Json& value) { return value.is_string(); });
    if (!item.is_null() && !(item.is_object() && texts)) {
      fail(kLengthBytes,
           concat(kMetadata, " of the header: expected texts by name, found ", item.dump()));
    }
    for (const auto& [key, value] : item.items()) {
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
        item["dtype"].is_string() ? item["dtype"].get<std::string>() : item["dtype"].dump();
    const auto* known = std::find_if(std::begin(kDtypeNames),
                                     std::end(kDtypeNames),
                                     [&](const DtypeName& each) { return dtype == each.name; });
    if (known == std::end(kDtypeNames)) {
      broken(concat("expected a dtype of F32, F64, F16, BF16, I32, I64 or U8, found ", dtype));
    }
    entry.dtype = known->dtype;
    std::uint64_t numel = 1;
    for (const Json& size : item["shape"]) {
      if (!size.is_number_unsigned()) {
        broken(concat("expected sizes from 0 on, found ", size.dump()));
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
      broken("expected two offsets from 0 on");
    }
    const auto begin = item["data_offsets"][0].get<std::uint64_t>();
    const auto end = item["data_offsets"][1].get<std::uint64_t>();
    if (end < begin || end - begin != entry.size_bytes()) {
      broken(concat("expected ",
                    entry.size_bytes(),
                    " bytes for its shape, found offsets ",
                    begin,
                    " and ",
                    end));
    }
    if (end > size_ - first) {
      fail(static_cast<std::int64_t>(size_),
           concat("expected tensor ",
                  name,
                  " up to byte ",
                  first + end,
                  ", found the end of the file: it is truncated"));
    }
    return {entry, first + begin};
  }

  std::string path_;
  std::size_t size_ = 0;
  const std::byte* data_ = nullptr;
  std::vector<Place> places_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
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
