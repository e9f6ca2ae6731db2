#include "data/mapped_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data_failure.h"

namespace trireme::detail {
namespace {

std::int64_t memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe would wait for its other end.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const int error = errno;
    throw_data_error(path,
                     -1,
                     "expected a file that can be read, found: ",
                     errno_text(error),
                     error == ENOENT ? ": check the spelling of the path" : "");
  }
  map(file);
}

MappedFile::MappedFile(const std::string& path, const FileDescriptor& content) : path_(path) {
  map(content);
}

void MappedFile::map(const FileDescriptor& file) {
  const std::string& path = path_;
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    throw_data_error(path, -1, "its size could not be found: ", errno_text(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    throw_data_error(path, -1, "expected a file, found a folder: name a file in it");
  }
  if (!S_ISREG(status.st_mode)) {
    throw_data_error(path,
                     -1,
                     "expected a regular file, found a device, pipe or socket, which cannot be "
                     "mapped: copy its content to a file");
  }
  if (status.st_size == 0) {
    throw_data_error(path, 0, "expected data, found an empty file");
  }
  void* data =
      mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    throw_data_error(path, -1, status.st_size, " bytes could not be mapped: ", errno_text(errno));
  }
  data_ = static_cast<const char*>(data);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<char*>(data_), static_cast<std::size_t>(size_));
  }
}

// Advice that is refused changes only the speed, so the results are not looked at.
void MappedFile::advise_one_pass() const {
  madvise(const_cast<char*>(data_), static_cast<std::size_t>(size_), MADV_SEQUENTIAL);
}

void MappedFile::advise_random_reads() const {
  // A file that fits well is read ahead as a whole. Of one that does not, reading ahead would fetch
  // neighbours that are gone again before their turn comes.
  const bool fits = size_ <= memory_bytes() / 4;
  madvise(
      const_cast<char*>(data_), static_cast<std::size_t>(size_), fits ? MADV_NORMAL : MADV_RANDOM);
  if (fits) {
    madvise(const_cast<char*>(data_), static_cast<std::size_t>(size_), MADV_WILLNEED);
  }
}

}  // namespace trireme::detail
