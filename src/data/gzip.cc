#include "data/gzip.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "data/data_failure.h"

namespace trireme::detail {
namespace {

constexpr unsigned char kMagic[2] = {0x1f, 0x8b};
// zlib counts in 32 bits.
constexpr std::int64_t kPiece = std::int64_t{1} << 30;
constexpr std::size_t kUnpackedPiece = std::size_t{1} << 20;
constexpr std::string_view kEnding = ".gz";

bool has_magic(const char* begin, const char* end) {
  return end - begin >= 2 && std::memcmp(begin, kMagic, 2) == 0;
}

}  // namespace

bool is_gzip(const MappedFile& file) {
  return has_magic(file.begin(), file.end());
}

bool is_packed_name(const std::string& path) {
  return path.ends_with(kEnding);
}

std::string without_gz(const std::string& path) {
  return is_packed_name(path) ? path.substr(0, path.size() - kEnding.size()) : path;
}

MappedFile plain_file(const std::string& path) {
  if (!is_packed_name(path)) {
    return MappedFile(path);
  }
  const MappedFile packed(path);
  packed.advise_one_pass();
  if (!is_gzip(packed)) {
    throw_data_error(path, 0, "expected a gzip file, as its name suggests, found something else");
  }
  const FileDescriptor memory(memfd_create("trireme-unpacked", MFD_CLOEXEC));
  GzipStream stream(packed);
  std::vector<std::byte> piece(kUnpackedPiece);
  while (const std::int64_t size = stream.read(piece)) {
    for (std::int64_t done = 0; done < size;) {
      const ssize_t wrote =
          write(memory.get(), piece.data() + done, static_cast<std::size_t>(size - done));
      if (wrote < 0 && errno != EINTR) {
        throw_data_error(
            path, -1, "its content could not be unpacked into memory: ", errno_text(errno));
      }
      done += std::max<ssize_t>(wrote, 0);
    }
  }
  return MappedFile(path, memory);
}

class GzipStream::State {
 public:
  explicit State(const MappedFile& file) : file_(file), next_(file.begin()) {
    // 15: the largest window; 16: gzip's header and checksum.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { inflateEnd(&stream_); }

  std::int64_t read(std::span<std::byte> out) {
    std::size_t filled = 0;
    while (filled < out.size() && !ended_) {
      const auto room = static_cast<uInt>(std::min<std::size_t>(out.size() - filled, kPiece));
      const auto given = static_cast<uInt>(std::min<std::int64_t>(file_.end() - next_, kPiece));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next_));
      stream_.avail_in = given;
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
      stream_.avail_out = room;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      next_ += given - stream_.avail_in;
      filled += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        start_next_member();
      } else if (result == Z_BUF_ERROR ||
                 (result == Z_OK && next_ == file_.end() && stream_.avail_out > 0)) {
        fail(
            "expected more of the gzip stream, found the end of the file: it is cut short, fetch "
            "it again");
      } else if (result != Z_OK) {
        fail(concat("expected a gzip stream, found damage ({}): fetch the file again",
                    {stream_.msg != nullptr ? stream_.msg : "unknown"}));
      }
    }
    return static_cast<std::int64_t>(filled);
  }

 private:
  // A gzip file may be several, one after another.
  void start_next_member() {
    if (next_ == file_.end()) {
      ended_ = true;
      return;
    }
    if (!has_magic(next_, file_.end())) {
      fail("expected the end of the file after the gzip stream, found other bytes");
    }
    inflateReset(&stream_);
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw_data_error(file_.path(), file_.offset_of(next_), message);
  }

  const MappedFile& file_;
  const char* next_;  // not yet unpacked
  bool ended_ = false;
  z_stream stream_{};
};

GzipStream::GzipStream(const MappedFile& file) : state_(std::make_unique<State>(file)) {}
GzipStream::~GzipStream() = default;

std::int64_t GzipStream::read(std::span<std::byte> out) {
  return state_->read(out);
}

std::int64_t GzipStream::largest_content(std::int64_t packed_bytes) {
  // Deflate spends at least 2 bits on a match, and a match is at most 258 bytes long.
  return packed_bytes * 4 * 258;
}

}  // namespace trireme::detail
