#include <filesystem>

#include "checkpoint/durable.h"
#include "checkpoint/safetensors_format.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/partial_file.h"

namespace trireme {

class SafetensorsWriter::Impl {
 public:
  Impl(const std::string& path,
       std::vector<TensorEntry> entries,
       const std::map<std::string, std::string>& metadata)
      : path_(path), entries_(std::move(entries)), file_(path) {
    file_.check_created();
    const std::string header = detail::safetensors_header(path_, entries_, metadata);
    write_all(file_.get(), path_, header.data(), header.size());
  }

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
    file_.finish();
    detail::sync_folder(std::filesystem::path(path_).parent_path().string());
  }

 private:
  std::string path_;
  std::vector<TensorEntry> entries_;
  PartialFile file_;
  std::size_t next_ = 0;
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
