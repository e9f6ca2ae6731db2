#include "checkpoint/manifest_checks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "checkpoint/safetensors_format.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

class Checker {
 public:
  Checker(const Manifest& manifest, const std::string& path) : manifest_(manifest), path_(path) {}

  void run() const {
    require(manifest_.step >= 0 && manifest_.sequence >= 0 && manifest_.ranks >= 1,
            "expected a step, a sequence number and a number of ranks of 0 or more");
    require(manifest_.block_bytes >= 1 << 9 && manifest_.block_bytes <= 1 << 30,
            concat("expected blocks of 512 bytes to 1 GiB, found ", manifest_.block_bytes));
    std::set<std::string> names;
    for (const SavedFile& file : manifest_.files) {
      check(file);
      require(names.insert(file.name).second, concat("file ", file.name, " is listed twice"));
    }
    std::set<std::pair<std::string, std::string>> titles;
    for (const SavedTensor& saved : manifest_.tensors) {
      check(saved);
      require(titles.emplace(saved.tensor.kind, saved.tensor.name).second,
              concat(saved.tensor.title(), " is listed twice"));
    }
  }

 private:
  void require(bool condition, const std::string& message) const {
    if (!condition) {
      throw CheckpointError(path_, -1, concat("\"", path_, "\": ", message));
    }
  }

  void check(const SavedFile& file) const {
    require(!file.name.empty() && file.name != "." && file.name != ".." &&
                file.name.find('/') == std::string::npos &&
                file.name.find('\0') == std::string::npos,
            concat("expected the name of a file in this folder, found \"", file.name, "\""));
    const std::uint64_t blocks = file.size_bytes / manifest_.block_bytes +
                                 (file.size_bytes % manifest_.block_bytes != 0 ? 1 : 0);
    require(file.checksums.size() == blocks,
            concat("file {}: expected {} checksums for {} bytes, found {}",
                   {file.name, blocks, file.size_bytes, file.checksums.size()}));
  }

  void check(const SavedTensor& saved) const {
    const StateTensor& tensor = saved.tensor;
    const std::string title = tensor.title();
    std::uint64_t numel = 1;
    for (const std::int64_t size : tensor.shape) {
      require(size >= 0, concat(title, ": expected sizes of 0 or more, found ", size));
      require(!__builtin_mul_overflow(numel, static_cast<std::uint64_t>(size), &numel) &&
                  numel <= kLargestNumel,
              concat(title, ": its shape is larger than any memory"));
    }
    require(tensor.strides.empty() || are_dense(tensor.shape, tensor.strides),
            concat(title, ": expected strides that leave no holes"));
    std::int64_t at = 0;
    for (const SavedPart& part : saved.parts) {
      require(part.range.begin == at && part.range.end > at,
              concat("{}: expected a part that begins with element {}, found elements {} to {}",
                     {title, at, part.range.begin, part.range.end}));
      at = part.range.end;
      require(part.file < manifest_.files.size(),
              concat(title, ": there is no file number ", part.file));
      require(at <= static_cast<std::int64_t>(numel),
              concat(title, ": expected ", numel, " elements, found a part up to ", at));
      const std::uint64_t bytes =
          static_cast<std::uint64_t>(part.range.size()) * dtype_bytes(tensor.dtype);
      const SavedFile& file = manifest_.files[part.file];
      require(part.offset <= file.size_bytes && bytes <= file.size_bytes - part.offset,
              concat("{}: elements {} to {} lie beyond the end of file {}",
                     {title, part.range.begin, part.range.end, file.name}));
    }
    require(at == static_cast<std::int64_t>(numel),
            concat(title, ": expected ", numel, " elements, found parts up to ", at));
  }

  const Manifest& manifest_;
  const std::string& path_;
};

}  // namespace

bool are_dense(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  if (shape.size() != strides.size()) {
    return false;
  }
  if (std::ranges::find(shape, 0) != shape.end()) {
    return true;
  }
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t next = 1;
  for (const std::size_t d : order) {
    if (shape[d] != 1) {
      if (strides[d] != next) {
        return false;
      }
      next *= shape[d];
    }
  }
  return true;
}

void check_manifest(const Manifest& manifest, const std::string& path) {
  Checker(manifest, path).run();
}

}  // namespace trireme::detail
