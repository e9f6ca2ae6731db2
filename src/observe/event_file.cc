#include "trireme/observe/event_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "observe/event_encoding.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/log.h"

namespace trireme {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::string_view kPrefix = "events.out.tfevents.";

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name;
}

struct NamedFile {
  std::string path;  // empty: there is none
  long long second = 0;
};

// The event file of the folder with the latest second in its name.
NamedFile newest_in(const std::string& folder) {
  NamedFile newest;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kPrefix)) {
      long long seconds = 0;
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
      if (newest.path.empty() || seconds > newest.second) {
        newest = {it->path().string(), seconds};
      }
    }
  }
  return newest;
}

// The bytes of a file up to its last whole record; 0 where it is damaged.
off_t whole_records(int file) {
  const off_t size = lseek(file, 0, SEEK_END);
  off_t at = 0;
  for (;;) {
    std::uint8_t head[detail::kRecordHead];
    if (pread(file, head, sizeof(head), at) != static_cast<ssize_t>(sizeof(head))) {
      return at;
    }
    const std::uint64_t length = detail::record_bytes(head);
    if (length == 0) {
      return 0;
    }
    if (length > static_cast<std::uint64_t>(size - at)) {
      return at;
    }
    at += static_cast<off_t>(length);
  }
}

[[noreturn]] void fail(const char* what, const std::string& path, int error_number) {
  throw Error(detail::concat(what, " ", path, ": ", detail::errno_text(error_number)));
}

}  // namespace

class EventFile::Impl {
 public:
  Impl(const std::string& folder, std::optional<std::int64_t> first_step, Into into) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      fail("could not make the folder of an event file,", folder, error.value());
    }
    if (into == Into::kNewFile || !open_newest(folder)) {
      open_new(folder);
      add(detail::version_event(seconds_since_1970()));
    }
    if (first_step) {
      add(detail::session_start_event({seconds_since_1970(), *first_step}));
    }
    flush();  // a folder that cannot be written to shows now, not after an hour of training
  }

  // Writes out a full buffer first, so that one that cannot be written does not grow: the event is
  // then not in the file, and everything before it still is or will be.
  void add(const std::string& event) {
    if (buffer_.size() >= kBufferBytes) {
      flush();
    }
    buffer_ += detail::record_of(event);
  }

  // What could not be written stays in the buffer, from the first byte that is not in the file:
  // once there is room again, the file goes on without a gap.
  void flush() {
    std::size_t written = 0;
    while (written < buffer_.size()) {
      const ssize_t count =
          ::write(file_.get(), buffer_.data() + written, buffer_.size() - written);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        const int error_number = count == 0 ? ENOSPC : errno;
        buffer_.erase(0, written);
        fail("could not write the event file", path_, error_number);
      }
      written += static_cast<std::size_t>(count);
    }
    buffer_.clear();
  }

  const std::string& path() const { return path_; }

 private:
  // False where there is none that can be gone on with.
  bool open_newest(const std::string& folder) {
    path_ = newest_in(folder).path;
    if (path_.empty()) {
      return false;
    }
    file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (!file_.valid()) {
      fail("could not open the event file", path_, errno);
    }
    const off_t kept = whole_records(file_.get());
    if (kept > 0 && ftruncate(file_.get(), kept) != 0) {
      fail("could not cut the event file", path_, errno);
    }
    return kept > 0;
  }

  // A name that is not taken: a process may open a second file in the same second. It comes after
  // those that are there: TensorBoard reads them in the order of their names.
  void open_new(const std::string& folder) {
    const auto now = static_cast<long long>(seconds_since_1970());
    const long long seconds = std::max(now, newest_in(folder).second + 1);
    for (int number = 0;; ++number) {
      const std::string again = number == 0 ? "" : "." + std::to_string(number);
      path_ = detail::concat(
          folder, "/", kPrefix, seconds, ".", host_name(), ".", getpid(), again, ".trireme");
      file_ = FileDescriptor(
          ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
      if (file_.valid()) {
        return;
      }
      if (errno != EEXIST) {
        fail("could not make the event file", path_, errno);
      }
    }
  }

  std::string path_;
  FileDescriptor file_;
  std::string buffer_;
};

EventFile::EventFile(const std::string& folder)
    : impl_(std::make_unique<Impl>(folder, std::nullopt, Into::kNewFile)) {}

EventFile::EventFile(const std::string& folder, std::int64_t first_step, Into into)
    : impl_(std::make_unique<Impl>(folder, first_step, into)) {}

EventFile::~EventFile() {
  try {
    impl_->flush();
  } catch (const std::exception& error) {
    log(LogLevel::kError, detail::concat(error.what(), "; the last events are lost"));
  }
}

void EventFile::add_scalar(const std::string& tag, std::int64_t step, double value) {
  impl_->add(detail::scalar_event({seconds_since_1970(), step}, tag, value));
}

void EventFile::add_histogram(const std::string& tag,
                              std::int64_t step,
                              std::span<const float> values) {
  impl_->add(detail::histogram_event({seconds_since_1970(), step}, tag, values));
}

void EventFile::add_text(const std::string& tag, std::int64_t step, const std::string& text) {
  impl_->add(detail::text_event({seconds_since_1970(), step}, tag, text));
}

void EventFile::flush() {
  impl_->flush();
}

const std::string& EventFile::path() const {
  return impl_->path();
}

}  // namespace trireme
