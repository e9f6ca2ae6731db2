#include "checkpoint/block_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checksum.h"
#include "device/buffer.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

// The system is asked for blocks this far ahead, so that a disk is never idle.
constexpr std::uint64_t kReadAhead = 32 << 20;

}  // namespace

BlockFile::BlockFile(const std::string& folder, const SavedFile& file, std::size_t block_bytes)
    : path_(folder + "/" + file.name),
      saved_(file),
      block_bytes_(block_bytes),
      file_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_.valid()) {
    throw CheckpointError(path_,
                          -1,
                          concat("\"{}\": expected a file of the checkpoint, found: {}; put it "
                                 "back, or use another checkpoint",
                                 {path_, errno_text(errno)}));
  }
  struct stat status {};
  fstat(file_.get(), &status);
  const auto size = S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
  if (size != file.size_bytes || !S_ISREG(status.st_mode)) {
    const std::uint64_t at = std::min(size, file.size_bytes);
    throw CheckpointError(
        path_,
        static_cast<std::int64_t>(at),
        concat(
            "\"{}\", byte {}: expected a file of {} bytes, found {}{}; use another checkpoint",
            {path_, at, file.size_bytes, size, size < file.size_bytes ? ": it is truncated" : ""}));
  }
}

std::uint64_t BlockFile::block_end(std::uint64_t block) const {
  return std::min((block + 1) * block_bytes_, saved_.size_bytes);
}

void BlockFile::read(std::uint64_t offset, std::uint64_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ssize_t got = pread(file_.get(), to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      throw CheckpointError(
          path_,
          static_cast<std::int64_t>(offset),
          concat("\"{}\", byte {}: expected {} more bytes, found {}; use another checkpoint",
                 {path_, offset, bytes, got == 0 ? "the end of the file" : errno_text(errno)}));
    }
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

std::string BlockFile::complaint(std::uint64_t block, const std::byte* bytes) const {
  const std::uint64_t begin = block * block_bytes_;
  const std::uint64_t found = checksum_of(bytes, block_end(block) - begin);
  if (found == saved_.checksums[block]) {
    return {};
  }
  return concat(
      "\"{}\", bytes {} to {}: expected the checksum {}, found {}: the file is damaged; use "
      "another checkpoint",
      {path_,
       begin,
       block_end(block),
       checksum_text(saved_.checksums[block]),
       checksum_text(found)});
}

void BlockFile::fetch(std::vector<Fetch> wanted) const {
  std::ranges::sort(wanted, [](const Fetch& a, const Fetch& b) { return a.offset < b.offset; });
  device::Buffer scratch(block_bytes_);
  std::uint64_t next_block = 0;  // not read before
  std::uint64_t asked_until = 0;
  std::size_t first = 0;  // that may reach into the block at hand
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint64_t end = wanted[i].offset + wanted[i].bytes;
    for (std::uint64_t block = std::max(wanted[i].offset / block_bytes_, next_block);
         wanted[i].bytes > 0 && block * block_bytes_ < end;
         ++block) {
      next_block = block + 1;
      const std::uint64_t block_begin = block * block_bytes_;
      const std::uint64_t block_finish = block_end(block);
      if (block_finish + kReadAhead / 2 > asked_until) {
        const std::uint64_t from = std::max(asked_until, block_begin);
        posix_fadvise(file_.get(),
                      static_cast<off_t>(from),
                      static_cast<off_t>(kReadAhead),
                      POSIX_FADV_WILLNEED);
        asked_until = from + kReadAhead;
      }
      const bool inside = wanted[i].offset <= block_begin && end >= block_finish;
      std::byte* at = inside ? wanted[i].to + (block_begin - wanted[i].offset) : scratch.data();
      read(block_begin, block_finish - block_begin, at);
      mark(PulsePhase::kCheckpoint);
      const std::string wrong = complaint(block, at);
      if (!wrong.empty()) {
        throw CheckpointError(path_, static_cast<std::int64_t>(block_begin), wrong);
      }
      // To everybody else who wants some of it. Fetches may overlap, but begin in order.
      while (first < i && wanted[first].offset + wanted[first].bytes <= block_begin) {
        ++first;
      }
      for (std::size_t k = first; k < wanted.size() && wanted[k].offset < block_finish; ++k) {
        const std::uint64_t from = std::max(wanted[k].offset, block_begin);
        const std::uint64_t to = std::min(wanted[k].offset + wanted[k].bytes, block_finish);
        if (from < to && !(inside && k == i)) {
          std::memcpy(
              wanted[k].to + (from - wanted[k].offset), at + (from - block_begin), to - from);
        }
      }
    }
  }
}

std::vector<std::string> BlockFile::verify() const {
  std::vector<std::string> wrong;
  device::Buffer scratch(block_bytes_);
  posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  for (std::uint64_t block = 0; block < saved_.checksums.size(); ++block) {
    std::string problem;
    try {
      read(block * block_bytes_, block_end(block) - block * block_bytes_, scratch.data());
      problem = complaint(block, scratch.data());
    } catch (const CheckpointError& error) {
      problem = error.what();
    }
    if (!problem.empty()) {
      wrong.push_back(std::move(problem));
    }
  }
  return wrong;
}

}  // namespace trireme::detail
