// A wall clock that somebody sets while a program runs, for LD_PRELOAD: it is ahead of the real one
// by as many seconds as the file TRIREME_TEST_CLOCK holds, in eight bytes. The other clocks are as
// they are.

#include <cstdint>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

std::int64_t ahead() {
  static const volatile std::int64_t* const seconds = [] {
    const char* path = std::getenv("TRIREME_TEST_CLOCK");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void* memory = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? nullptr : static_cast<const volatile std::int64_t*>(memory);
  }();
  return seconds == nullptr ? 0 : *seconds;
}

}  // namespace

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's own names.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto failed = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += ahead();
  }
  return failed;
}

extern "C" int gettimeofday(timeval* __restrict now, void* __restrict /*zone*/) noexcept {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  *now = {time.tv_sec, time.tv_nsec / 1000};
  return 0;
}

extern "C" time_t time(time_t* where) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (where != nullptr) {
    *where = now.tv_sec;
  }
  return now.tv_sec;
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
