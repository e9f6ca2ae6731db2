// Writes down, in their order, what processes do to the files below a folder, for LD_PRELOAD: a
// test plays it again and lets the power fail anywhere in it (support/power_cut.h). The folder is
// in TRIREME_FILE_LOG_ROOT, the log in TRIREME_FILE_LOG. Files are numbers (of inodes); a record is
// a line, what was written follows it:
//   create FOLDER NAME FILE f|d      link FOLDER NAME FILE      remove FOLDER NAME
//   rename FOLDER NAME FILE NEW-FOLDER NEW-NAME OTHER    OTHER: what has the old name then, or 0
//   write FILE OFFSET BYTES     truncate FILE BYTES     sync FILE
// A way to change files that is missing here shows when the log is played to its end: what comes of
// it is not what is in the folder.

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

using std::to_string;

const std::string& root() {
  static const auto* const text = new std::string(std::getenv("TRIREME_FILE_LOG_ROOT"));
  return *text;
}

// Keeps an operation and its record together, among all processes that log.
class Turn {
 public:
  Turn() : errno_(errno) {
    mutex().lock();
    lock(F_WRLCK);
  }
  ~Turn() {
    lock(F_UNLCK);
    mutex().unlock();
    errno = errno_;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // The operation's result, whose errno is the caller's.
  long result_of(long result) {
    errno_ = errno;
    return result;
  }
  static void write(const std::string& record, const void* data = nullptr, std::size_t bytes = 0) {
    const std::string line = record + "\n";
    const iovec parts[] = {{const_cast<char*>(line.data()), line.size()},
                           {const_cast<void*>(data), bytes}};
    if (syscall(SYS_writev, file(), parts, 2) != static_cast<long>(line.size() + bytes)) {
      std::abort();
    }
  }

 private:
  static std::mutex& mutex() {
    static auto* const instance = new std::mutex;
    return *instance;
  }
  static int file() {
    static const auto fd = static_cast<int>(syscall(SYS_openat,
                                                    AT_FDCWD,
                                                    std::getenv("TRIREME_FILE_LOG"),
                                                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                                                    0600));
    return fd;
  }
  // Of this process, unlike those of flock, which a fork hands on.
  static void lock(short kind) {
    struct flock whole {};
    whole.l_type = kind;
    if (fcntl(file(), F_SETLKW, &whole) != 0) {
      std::abort();
    }
  }

  int errno_;
};

std::string path_of(int fd) {
  char text[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + to_string(fd)).c_str(), text, sizeof(text));
  return {text, static_cast<std::size_t>(length < 0 ? 0 : length)};
}

bool is_logged(const std::string& path) {
  return path.compare(0, root().size(), root()) == 0;
}
bool is_logged(int fd) {
  return is_logged(path_of(fd));
}

// A name and the folder that it is in.
struct Place {
  std::string whole;
  std::string name;
  std::uint64_t folder = 0;
  std::uint64_t file = 0;  // 0: there is none

  Place(int at, const char* path) : whole(path) {
    if (whole.empty() || whole[0] != '/') {
      char cwd[4096];
      whole = (at == AT_FDCWD ? std::string(getcwd(cwd, sizeof(cwd))) : path_of(at)) + "/" + whole;
    }
    while (whole.size() > 1 && whole.back() == '/') {
      whole.pop_back();
    }
    const std::size_t slash = whole.rfind('/');
    name = whole.substr(slash + 1);
    struct stat status {};
    if (stat(whole.substr(0, slash).c_str(), &status) == 0) {
      folder = status.st_ino;
    }
    if (lstat(whole.c_str(), &status) == 0) {
      file = status.st_ino;
    }
  }
  bool logged() const { return is_logged(whole); }
  std::string text() const { return to_string(folder) + " " + name; }
};

std::string inode_of(int fd) {
  struct stat status {};
  fstat(fd, &status);
  return to_string(status.st_ino);
}

int log_open(int at, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return syscall(SYS_openat, at, path, flags, mode); };
  if ((flags & O_ACCMODE) == O_RDONLY) {
    return static_cast<int>(call());
  }
  Turn turn;
  const Place place(at, path);
  const auto fd = static_cast<int>(turn.result_of(call()));
  if (!place.logged()) {
    return fd;
  }
  // A file may have been made although it could not be opened (O_DIRECT).
  const Place after(at, path);
  if (place.file == 0 && after.file != 0) {
    Turn::write("create " + place.text() + " " + to_string(after.file) + " f");
  } else if (fd >= 0 && (flags & O_TRUNC) != 0) {
    Turn::write("truncate " + to_string(after.file) + " 0");
  }
  return fd;
}

mode_t mode_in(int flags, va_list& arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

ssize_t log_write(int fd, const void* data, std::size_t bytes, off_t offset) {
  const auto call = [&] {
    return offset < 0 ? syscall(SYS_write, fd, data, bytes)
                      : syscall(SYS_pwrite64, fd, data, bytes, offset);
  };
  if (!is_logged(fd)) {
    return call();
  }
  Turn turn;
  struct stat before {};
  fstat(fd, &before);
  const bool appends = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
  const off_t place = offset >= 0 ? offset : appends ? before.st_size : lseek(fd, 0, SEEK_CUR);
  const ssize_t written = turn.result_of(call());
  if (written > 0) {
    Turn::write("write " + inode_of(fd) + " " + to_string(place) + " " + to_string(written),
                data,
                static_cast<std::size_t>(written));
  }
  return written;
}

int log_sync(int number, int fd) {
  if (!is_logged(fd)) {
    return static_cast<int>(syscall(number, fd));
  }
  Turn turn;
  const auto code = static_cast<int>(turn.result_of(syscall(number, fd)));
  if (code == 0) {
    Turn::write("sync " + inode_of(fd));
  }
  return code;
}

int log_truncate(int fd, off_t bytes) {
  if (!is_logged(fd)) {
    return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
  }
  Turn turn;
  const auto code = static_cast<int>(turn.result_of(syscall(SYS_ftruncate, fd, bytes)));
  if (code == 0) {
    Turn::write("truncate " + inode_of(fd) + " " + to_string(bytes));
  }
  return code;
}

int log_rename(int at, const char* from, int new_at, const char* to, unsigned flags) {
  Turn turn;
  const Place old_place(at, from);
  const Place new_place(new_at, to);
  const auto code =
      static_cast<int>(turn.result_of(syscall(SYS_renameat2, at, from, new_at, to, flags)));
  if (code == 0 && (old_place.logged() || new_place.logged())) {
    const std::uint64_t other = (flags & RENAME_EXCHANGE) != 0 ? new_place.file : 0;
    Turn::write("rename " + old_place.text() + " " + to_string(old_place.file) + " " +
                new_place.text() + " " + to_string(other));
  }
  return code;
}

int log_remove(int at, const char* path, int flags) {
  Turn turn;
  const Place place(at, path);
  const auto code = static_cast<int>(turn.result_of(syscall(SYS_unlinkat, at, path, flags)));
  if (code == 0 && place.logged()) {
    Turn::write("remove " + place.text());
  }
  return code;
}

int log_mkdir(int at, const char* path, mode_t mode) {
  Turn turn;
  const auto code = static_cast<int>(turn.result_of(syscall(SYS_mkdirat, at, path, mode)));
  const Place place(at, path);
  if (code == 0 && place.logged()) {
    Turn::write("create " + place.text() + " " + to_string(place.file) + " d");
  }
  return code;
}

int log_link(int at, const char* from, int new_at, const char* to, int flags) {
  Turn turn;
  const auto code =
      static_cast<int>(turn.result_of(syscall(SYS_linkat, at, from, new_at, to, flags)));
  const Place place(new_at, to);
  if (code == 0 && place.logged()) {
    Turn::write("link " + place.text() + " " + to_string(place.file));
  }
  return code;
}

}  // namespace

// The C library's own names, in whose place these are called.
extern "C" {

#define TRIREME_OPEN(name)                         \
  int name(const char* path, int flags, ...) {     \
    va_list arguments;                             \
    va_start(arguments, flags);                    \
    const mode_t mode = mode_in(flags, arguments); \
    va_end(arguments);                             \
    return log_open(AT_FDCWD, path, flags, mode);  \
  }
#define TRIREME_OPENAT(name)                           \
  int name(int at, const char* path, int flags, ...) { \
    va_list arguments;                                 \
    va_start(arguments, flags);                        \
    const mode_t mode = mode_in(flags, arguments);     \
    va_end(arguments);                                 \
    return log_open(at, path, flags, mode);            \
  }
TRIREME_OPEN(open)
TRIREME_OPEN(open64)
TRIREME_OPENAT(openat)
TRIREME_OPENAT(openat64)

ssize_t write(int fd, const void* data, size_t bytes) {
  return log_write(fd, data, bytes, -1);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return log_write(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return log_write(fd, data, bytes, offset);
}
int ftruncate(int fd, off_t bytes) noexcept {
  return log_truncate(fd, bytes);
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  return log_truncate(fd, bytes);
}
int fsync(int fd) {
  return log_sync(SYS_fsync, fd);
}
int fdatasync(int fd) {
  return log_sync(SYS_fdatasync, fd);
}
int rename(const char* from, const char* to) noexcept {
  return log_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int at, const char* from, int new_at, const char* to) noexcept {
  return log_rename(at, from, new_at, to, 0);
}
int renameat2(int at, const char* from, int new_at, const char* to, unsigned flags) noexcept {
  return log_rename(at, from, new_at, to, flags);
}
int unlink(const char* path) noexcept {
  return log_remove(AT_FDCWD, path, 0);
}
int unlinkat(int at, const char* path, int flags) noexcept {
  return log_remove(at, path, flags);
}
int rmdir(const char* path) noexcept {
  return log_remove(AT_FDCWD, path, AT_REMOVEDIR);
}
int remove(const char* path) noexcept {
  const int code = log_remove(AT_FDCWD, path, 0);
  return code != 0 && errno == EISDIR ? log_remove(AT_FDCWD, path, AT_REMOVEDIR) : code;
}
int mkdir(const char* path, mode_t mode) noexcept {
  return log_mkdir(AT_FDCWD, path, mode);
}
int mkdirat(int at, const char* path, mode_t mode) noexcept {
  return log_mkdir(at, path, mode);
}
int link(const char* from, const char* to) noexcept {
  return log_link(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int at, const char* from, int new_at, const char* to, int flags) noexcept {
  return log_link(at, from, new_at, to, flags);
}

}  // extern "C"
