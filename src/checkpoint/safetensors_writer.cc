#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/durable.h"
#include "checkpoint/safetensors_format.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/file_write.h"

namespace trireme {
namespace {

using detail::concat;
using detail::errno_text;

}  // namespace

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
      throw Error(concat("\"", path, "\" could not be created: ", errno_text(errno)));
    }
    try {
      const std::string header = detail::safetensors_header(path_, entries_, metadata);
      write_all(file_.get(), path_, header.data(), header.size());
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
    TRIREME_CHECK(
        next_ < entries_.size(), "\"", path_, "\": all its tensors have already been written");
    const TensorEntry& entry = entries_[next_];
    TRIREME_CHECK(values.dtype() == entry.dtype && values.numel() == entry.numel(),
                  "\"{}\": expected tensor {} ({} x {}), found {} x {}",
                  {path_,
                   entry.name,
                   dtype_name(entry.dtype),
                   entry.numel(),
                   dtype_name(values.dtype()),
                   values.numel()});
    write_all(file_.get(), path_, values.bytes(), values.size_bytes());
    ++next_;
  }

  void finish() {
    TRIREME_CHECK(
        next_ == entries_.size(),
        "\"{}\": {} tensors are missing, the next is {}",
        {path_, entries_.size() - next_, entries_[std::min(next_, entries_.size() - 1)].name});
    if (fsync(file_.get()) != 0) {
      throw Error(concat("\"", path_, "\" could not be written to disk: ", errno_text(errno)));
    }
    file_.reset();
    if (rename(partial_.c_str(), path_.c_str()) != 0) {
      throw Error(concat("\"", partial_, "\" could not be renamed: ", errno_text(errno)));
    }
    finished_ = true;
    detail::sync_folder(std::filesystem::path(path_).parent_path().string());
  }

 private:
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
