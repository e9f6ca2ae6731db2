#include "archive/zip_check.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

// The format: records (a header with the name, then the bytes), then a directory of all of them,
// then the place of the directory. Numbers are little-endian; those that do not fit into 32 bits
// are all ones, and stand in a field of their own.

namespace trireme::detail {
namespace {

constexpr std::uint32_t kRecordMark = 0x04034b50;
constexpr std::uint32_t kEntryMark = 0x02014b50;
constexpr std::uint32_t kEndMark = 0x06054b50;
constexpr std::uint32_t kWideEndMark = 0x06064b50;
constexpr std::uint32_t kWidePlaceMark = 0x07064b50;
constexpr std::size_t kRecordBytes = 30;
constexpr std::size_t kEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kWideEndBytes = 56;
constexpr std::size_t kWidePlaceBytes = 20;
constexpr std::size_t kLongestComment = 0xffff;
constexpr std::uint32_t kElsewhere = 0xffffffff;
constexpr std::uint16_t kWideField = 1;
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kDeflated = 8;
constexpr std::size_t kChunk = 1 << 20;

std::uint64_t number(const std::uint8_t* at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  }
  return value;
}

std::uint32_t mark(const std::uint8_t* at) {
  return static_cast<std::uint32_t>(number(at, 4));
}

struct Entry {
  std::string name;
  std::uint16_t method = 0;
  std::uint32_t checksum = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // of the record
};

class ZipFile {
 public:
  explicit ZipFile(const std::string& path)
      : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (!file_.valid() || fstat(file_.get(), &status) != 0) {
      fail(-1, concat("expected an archive of torch::save, found: ", errno_text(errno)));
    }
    if (!S_ISREG(status.st_mode)) {
      fail(-1, "expected an archive of torch::save, found a folder or device");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  void check() const {
    for (const Entry& entry : entries()) {
      check(entry);
    }
  }

 private:
  using Bytes = std::vector<std::uint8_t>;

  [[noreturn]] void fail(std::int64_t offset, const std::string& message) const {
    throw DataError(
        path_,
        offset,
        concat("\"", path_, "\"", offset >= 0 ? concat(", byte ", offset) : "", ": ", message));
  }

  Bytes read(std::uint64_t offset, std::uint64_t bytes, const char* what) const {
    if (offset > size_ || bytes > size_ - offset) {
      fail(static_cast<std::int64_t>(size_),
           concat("expected {} up to byte {}, found the end of the file", {what, offset + bytes}));
    }
    Bytes result(bytes);
    std::uint64_t done = 0;
    while (done < bytes) {
      const ssize_t got =
          pread(file_.get(), result.data() + done, bytes - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        fail(static_cast<std::int64_t>(offset + done),
             concat("could not be read: ", got < 0 ? errno_text(errno) : "it became shorter"));
      }
      done += static_cast<std::uint64_t>(got);
    }
    return result;
  }

  // Where the directory begins, and how many entries it has.
  struct Directory {
    std::uint64_t offset;
    std::uint64_t entries;
  };

  Directory directory() const {
    const std::uint64_t length = std::min<std::uint64_t>(size_, kEndBytes + kLongestComment);
    const Bytes tail = read(size_ - length, length, "the end of a ZIP file");
    for (std::uint64_t back = kEndBytes; back <= length; ++back) {
      const std::uint8_t* end = tail.data() + (length - back);
      if (mark(end) != kEndMark) {
        continue;
      }
      const std::uint64_t end_offset = size_ - back;
      if (end_offset >= kWidePlaceBytes) {
        const Bytes place = read(end_offset - kWidePlaceBytes, kWidePlaceBytes, "the directory");
        if (mark(place.data()) == kWidePlaceMark) {
          const std::uint64_t wide = number(place.data() + 8, 8);
          const Bytes record = read(wide, kWideEndBytes, "the directory's place");
          if (mark(record.data()) != kWideEndMark) {
            fail(static_cast<std::int64_t>(wide), "expected the place of the directory");
          }
          return {number(record.data() + 48, 8), number(record.data() + 32, 8)};
        }
      }
      return {number(end + 16, 4), number(end + 10, 2)};
    }
    fail(static_cast<std::int64_t>(size_),
         "expected an archive of torch::save, which ends with a directory of its records, found "
         "none: it is cut short, or something else");
  }

  std::vector<Entry> entries() const {
    const Directory place = directory();
    std::vector<Entry> all;
    std::uint64_t at = place.offset;
    for (std::uint64_t i = 0; i < place.entries; ++i) {
      const Bytes head = read(at, kEntryBytes, "an entry of the directory");
      if (mark(head.data()) != kEntryMark) {
        fail(static_cast<std::int64_t>(at), "expected an entry of the directory: it is damaged");
      }
      const std::uint64_t name = number(head.data() + 28, 2);
      const std::uint64_t extra = number(head.data() + 30, 2);
      const std::uint64_t comment = number(head.data() + 32, 2);
      const Bytes rest = read(at + kEntryBytes, name + extra, "an entry of the directory");
      Entry entry;
      entry.name.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(name));
      entry.method = static_cast<std::uint16_t>(number(head.data() + 10, 2));
      entry.checksum = static_cast<std::uint32_t>(number(head.data() + 16, 4));
      entry.stored_bytes = number(head.data() + 20, 4);
      entry.bytes = number(head.data() + 24, 4);
      entry.offset = number(head.data() + 42, 4);
      widen(entry, Bytes(rest.begin() + static_cast<std::ptrdiff_t>(name), rest.end()));
      all.push_back(std::move(entry));
      at += kEntryBytes + name + extra + comment;
    }
    return all;
  }

  // Takes what did not fit into 32 bits from the field that has it.
  static void widen(Entry& entry, const Bytes& extra) {
    std::size_t at = 0;
    while (at + 4 <= extra.size()) {
      const auto id = static_cast<std::uint16_t>(number(extra.data() + at, 2));
      const std::size_t end = at + 4 + number(extra.data() + at + 2, 2);
      if (id == kWideField && end <= extra.size()) {
        std::size_t next = at + 4;
        for (std::uint64_t* value : {&entry.bytes, &entry.stored_bytes, &entry.offset}) {
          if (*value == kElsewhere && next + 8 <= end) {
            *value = number(extra.data() + next, 8);
            next += 8;
          }
        }
      }
      at = end;
    }
  }

  void check(const Entry& entry) const {
    const Bytes head = read(entry.offset, kRecordBytes, "a record");
    if (mark(head.data()) != kRecordMark) {
      fail(static_cast<std::int64_t>(entry.offset),
           concat("expected the record ", entry.name, ": the file is damaged"));
    }
    const std::uint64_t begin =
        entry.offset + kRecordBytes + number(head.data() + 26, 2) + number(head.data() + 28, 2);
    const bool known = entry.method == kStored || entry.method == kDeflated;
    std::uint64_t bytes = 0;
    const std::uint32_t found =
        entry.method == kDeflated ? inflated(entry, begin, bytes) : stored(entry, begin, bytes);
    if (!known || found != entry.checksum || bytes != entry.bytes) {
      char text[64];
      std::snprintf(text, sizeof(text), "%08x, found %08x", entry.checksum, found);
      fail(static_cast<std::int64_t>(begin),
           concat("the record {}: expected {} bytes with the checksum {}: the file is damaged (or "
                  "was written without checksums)",
                  {entry.name, entry.bytes, text}));
    }
  }

  std::uint32_t stored(const Entry& entry, std::uint64_t begin, std::uint64_t& bytes) const {
    uLong checksum = crc32(0, nullptr, 0);
    for (; bytes < entry.stored_bytes;) {
      const std::uint64_t length = std::min<std::uint64_t>(kChunk, entry.stored_bytes - bytes);
      const Bytes chunk = read(begin + bytes, length, entry.name.c_str());
      checksum = crc32(checksum, chunk.data(), static_cast<uInt>(length));
      bytes += length;
    }
    return static_cast<std::uint32_t>(checksum);
  }

  std::uint32_t inflated(const Entry& entry, std::uint64_t begin, std::uint64_t& bytes) const {
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {  // without a header of zlib's own
      throw InternalError("zlib could not be started");
    }
    uLong checksum = crc32(0, nullptr, 0);
    Bytes out(kChunk);
    int state = Z_OK;
    for (std::uint64_t done = 0; done < entry.stored_bytes && state == Z_OK;) {
      const std::uint64_t length = std::min<std::uint64_t>(kChunk, entry.stored_bytes - done);
      Bytes chunk;
      try {
        chunk = read(begin + done, length, entry.name.c_str());
      } catch (...) {
        inflateEnd(&stream);
        throw;
      }
      done += length;
      stream.next_in = chunk.data();
      stream.avail_in = static_cast<uInt>(length);
      while (state == Z_OK && bytes <= entry.bytes) {
        stream.next_out = out.data();
        stream.avail_out = static_cast<uInt>(out.size());
        state = inflate(&stream, Z_NO_FLUSH);
        const std::size_t made = out.size() - stream.avail_out;
        checksum = crc32(checksum, out.data(), static_cast<uInt>(made));
        bytes += made;
        if (stream.avail_in == 0 && made < out.size()) {
          break;
        }
      }
      state = state == Z_BUF_ERROR ? Z_OK : state;
    }
    inflateEnd(&stream);
    return static_cast<std::uint32_t>(checksum);
  }

  std::string path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace

void check_zip_file(const std::string& path) {
  ZipFile(path).check();
}

}  // namespace trireme::detail
