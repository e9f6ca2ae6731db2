#include <algorithm>
#include <array>
#include <optional>

#include "data/batch_layout.h"
#include "data/data_failure.h"
#include "data/gzip.h"
#include "data/mapped_file.h"
#include "device/buffer.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

constexpr std::uint32_t kImageMagic = 0x00000803;  // 08: unsigned bytes, 03: three dimensions
constexpr std::uint32_t kLabelMagic = 0x00000801;

std::uint32_t big_endian(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

// What a file that begins with this number may be.
std::string meaning_of(std::uint32_t magic, std::uint32_t expected) {
  if (magic == kLabelMagic && expected == kImageMagic) {
    return " (these are labels, not images: are the two files swapped?)";
  }
  if (magic == kImageMagic && expected == kLabelMagic) {
    return " (these are images, not labels: are the two files swapped?)";
  }
  if ((magic & 0xffff0000) == 0 && (magic >> 8) >= 0x08 && (magic >> 8) <= 0x0e) {
    return detail::concat(
        " (idx, but of {} in {} dimensions)",
        {magic >> 8 == 0x08 ? "unsigned bytes" : "a type other than unsigned bytes", magic & 0xff});
  }
  if (magic == 0x03080000 || magic == 0x01080000) {
    return " (idx with its bytes reversed: write it big-endian)";
  }
  if (magic >> 16 == 0x1f8b) {
    return " (this is a gzip file, packed twice: unpack it once)";
  }
  if (magic == 0x504b0304) {
    return " (this is a zip file: unpack it)";
  }
  if (magic == 0x89504e47) {
    return " (this is a PNG image)";
  }
  return " (not an idx file)";
}

// The content of an idx file of unsigned bytes: a view of the mapped file, or unpacked memory.
class IdxFile {
 public:
  IdxFile(const std::string& path, std::uint32_t magic)
      : path_(path), file_(path), packed_(detail::is_gzip(file_)) {
    const std::size_t dimensions = magic & 0xff;
    header_bytes_ = static_cast<std::int64_t>(4 + 4 * dimensions);
    if (packed_) {
      unpack(magic);
    } else {
      read_header(reinterpret_cast<const unsigned char*>(file_.begin()), file_.size(), magic);
      check_size(file_.size());
      values_ = reinterpret_cast<const unsigned char*>(file_.begin()) + header_bytes_;
      file_.advise_random_reads();
    }
  }

  const std::string& path() const { return path_; }
  const unsigned char* values() const { return values_; }
  std::int64_t length(std::size_t dimension) const { return lengths_[dimension]; }
  std::int64_t header_bytes() const { return header_bytes_; }

  template <class... Parts>
  [[noreturn]] void fail(std::int64_t offset, const Parts&... parts) const {
    detail::throw_data_error(path_, offset, packed_ ? "(unpacked) " : "", parts...);
  }

 private:
  void read_header(const unsigned char* bytes, std::int64_t available, std::uint32_t magic) {
    if (available >= 4 && big_endian(bytes) != magic) {
      std::array<char, 16> found{};
      std::snprintf(found.data(), found.size(), "0x%08x", big_endian(bytes));
      fail(0,
           detail::concat("expected the magic number {}, found {}{}",
                          {magic == kImageMagic ? "0x00000803 (images)" : "0x00000801 (labels)",
                           found.data(),
                           meaning_of(big_endian(bytes), magic)}));
    }
    if (available < header_bytes_) {
      fail(available,
           "expected an idx header of ",
           header_bytes_,
           " bytes, found the end of the file: it is cut short, fetch it again");
    }
    // Lengths are below 2^32 and there are at most three, so 128 bits hold their product.
    unsigned __int128 product = 1;
    for (std::int64_t at = 4; at < header_bytes_; at += 4) {
      const std::uint32_t length = big_endian(bytes + at);
      if (length == 0) {
        fail(at, "expected a length above 0, found 0: the file holds nothing");
      }
      lengths_[static_cast<std::size_t>(at / 4 - 1)] = length;
      product *= length;
    }
    // Nothing on disk is of that size; the clamp only keeps the message's number readable.
    value_bytes_ = product > kLargest ? kLargest : static_cast<std::int64_t>(product);
  }

  std::string announced() const {
    std::string text = std::to_string(lengths_[0]);
    for (std::size_t i = 1; i < lengths_.size() && lengths_[i] > 0; ++i) {
      text += " x " + std::to_string(lengths_[i]);
    }
    return text;
  }

  void check_size(std::int64_t available) const {
    if (available - header_bytes_ < value_bytes_) {
      fail(available,
           detail::concat("expected {} bytes after the header (as it says), found the end of the "
                          "file after {}: it is cut short or its header is damaged, fetch it again",
                          {announced(), available - header_bytes_}));
    }
    if (available - header_bytes_ > value_bytes_) {
      fail(header_bytes_ + value_bytes_,
           "expected the end of the file after ",
           announced(),
           " bytes (the header says so), found more bytes: is it another file?");
    }
  }

  void unpack(std::uint32_t magic) {
    detail::GzipStream stream(file_);
    file_.advise_one_pass();
    std::array<std::byte, 16> header{};
    const std::int64_t got =
        stream.read(std::span(header).first(static_cast<std::size_t>(header_bytes_)));
    read_header(reinterpret_cast<const unsigned char*>(header.data()), got, magic);
    // Before memory is taken for it: a damaged header can ask for anything.
    if (value_bytes_ > detail::GzipStream::largest_content(file_.size())) {
      fail(4,
           detail::concat("expected a header that fits the file, found one of {} bytes, which {} "
                          "packed bytes cannot hold: it is damaged, fetch it again",
                          {announced(), file_.size()}));
    }
    memory_ = device::Buffer(static_cast<std::size_t>(value_bytes_));
    const std::int64_t unpacked = stream.read({memory_.data(), memory_.size_bytes()});
    // One byte more than announced tells apart "as announced" and "more", however much more there
    // is; it also makes zlib compare the checksum.
    std::byte beyond{};
    check_size(header_bytes_ + unpacked + stream.read({&beyond, 1}));
    values_ = reinterpret_cast<const unsigned char*>(memory_.data());
  }

  static constexpr std::int64_t kLargest = std::int64_t{1} << 62;

  std::string path_;
  detail::MappedFile file_;
  bool packed_;
  device::Buffer memory_;
  std::int64_t header_bytes_ = 0;
  std::int64_t value_bytes_ = 0;
  std::array<std::int64_t, 3> lengths_{};
  const unsigned char* values_ = nullptr;
};

constexpr auto kByteValues = [] {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) / 255.0F;
  }
  return values;
}();

class IdxDataset final : public Dataset {
 public:
  // `labels` may be empty where `classes` is not 0: then all are 0.
  IdxDataset(const std::string& images, const std::string& labels, std::int64_t classes)
      : images_(images, kImageMagic) {
    shape_.dense = {1, images_.length(1), images_.length(2)};
    shape_.classes = classes;
    if (!labels.empty()) {
      labels_.emplace(labels, kLabelMagic);
      check_labels(images);
    }
  }

  std::int64_t size() const override { return images_.length(0); }
  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t sample) const override {
    detail::check_sample(sample, size());
    return labels_ ? labels_->values()[sample] : 0;
  }

  Preprocessing preprocessing() const override {
    Preprocessing all;
    all.format = "idx";
    all.shape = shape_;
    return all;
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    const std::int64_t numel = shape_.dense_numel();
    float* out = batch.dense.data();
    for (std::size_t row = 0; row < samples.size(); ++row) {
      const unsigned char* image = images_.values() + samples[row] * numel;
      for (std::int64_t i = 0; i < numel; ++i) {
        out[i] = kByteValues[image[i]];
      }
      out += numel;
      batch.labels[row] = labels_ ? labels_->values()[samples[row]] : 0;
    }
  }

 private:
  void check_labels(const std::string& images) {
    if (images_.length(0) != labels_->length(0)) {
      labels_->fail(4,
                    detail::concat("expected {} labels, one for each image of {}, found {}: the "
                                   "two files do not belong together",
                                   {images_.length(0), images, labels_->length(0)}));
    }
    shape_.classes = shape_.classes > 0 ? shape_.classes : largest_label() + 1;
    if (largest_label() >= shape_.classes) {
      const unsigned char* wrong =
          std::find_if(labels_->values(), labels_->values() + size(), [&](unsigned char label) {
            return label >= shape_.classes;
          });
      labels_->fail(labels_->header_bytes() + (wrong - labels_->values()),
                    detail::concat("expected a label below {} (the number of classes), found {}",
                                   {shape_.classes, static_cast<int>(*wrong)}));
    }
  }

  std::int64_t largest_label() const {
    return *std::max_element(labels_->values(), labels_->values() + size());
  }

  IdxFile images_;
  std::optional<IdxFile> labels_;
  SampleShape shape_{};
};

}  // namespace

std::shared_ptr<Dataset> open_idx(const std::string& images,
                                  const std::string& labels,
                                  std::int64_t classes) {
  TRIREME_CHECK(classes >= 0, "classes cannot be negative, found ", classes);
  TRIREME_CHECK(!labels.empty() || classes > 0, "images without labels need a number of classes");
  return std::make_shared<IdxDataset>(images, labels, classes);
}

}  // namespace trireme
