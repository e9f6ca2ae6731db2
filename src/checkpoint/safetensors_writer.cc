#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "checkpoint/safetensors_format.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/file_write.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using detail::concat;
using detail::DtypeName;
using detail::errno_text;
using detail::kAlignment;
using detail::kDtypeNames;
using detail::kLengthBytes;
using detail::kMetadata;

const char* file_name_of(Dtype dtype) {
  for (const DtypeName& entry : kDtypeNames) {
    if (entry.dtype == dtype) {
      return entry.name;
    }
  }
  throw InternalError("a dtype without a name in safetensors");
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

}  // namespace trireme
