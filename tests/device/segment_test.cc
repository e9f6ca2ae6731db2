// Shared memory on a kernel that a signal keeps from allocating much at a time.

#include "device/host/segment.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// What the calls of fallocate below do.
struct MadeUpKernel {
  std::size_t between_signals = 0;  // bytes; a longer call is interrupted, and has done nothing
  std::size_t memory = ~std::size_t{0};
  std::size_t given = 0;
  std::vector<std::size_t> interrupted;
  int taken_back = 0;
};
MadeUpKernel* kernel = nullptr;

constexpr std::size_t kPage = 4096;
// A real kernel would go on for ever: enough to say that it does.
constexpr std::size_t kManyTimes = 1000;

int allocate(int fd, int mode, off_t offset, off_t length) {
  const auto bytes = static_cast<std::size_t>(length);
  if (kernel != nullptr && (mode & FALLOC_FL_PUNCH_HOLE) != 0) {
    ++kernel->taken_back;
  } else if (kernel != nullptr) {
    if (bytes > kernel->between_signals) {
      kernel->interrupted.push_back(bytes);
      errno = kernel->interrupted.size() < kManyTimes ? EINTR : EDEADLK;
      return -1;
    }
    if (bytes > kernel->memory - kernel->given) {
      errno = ENOSPC;
      return -1;
    }
    kernel->given += bytes;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

std::size_t pages_of(int fd) {
  struct stat status {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512 / kPage;
}

class Segment : public ::testing::Test {
 protected:
  Segment() { kernel = &kernel_; }
  ~Segment() override { kernel = nullptr; }
  MadeUpKernel kernel_;
};

TEST_F(Segment, GetsItsPagesAlthoughSignalsKeepComing) {
  constexpr std::size_t kBytes = 24 << 20;
  constexpr std::size_t kOffset = 16 * kPage;
  const FileDescriptor memory = device::create_memory(kOffset + kBytes);
  kernel_.between_signals = 1 << 20;
  device::reserve_pages(memory.get(), kOffset, kBytes);
  EXPECT_FALSE(kernel_.interrupted.empty());
  EXPECT_EQ(kernel_.given, kBytes) << "each page once: what a piece has got is kept";
  EXPECT_GE(pages_of(memory.get()), kBytes / kPage);  // more where pages are huge
}

TEST_F(Segment, IsGivenInPiecesEvenWhereNothingInterrupts) {
  constexpr std::size_t kBytes = (130 << 20) + 3 * kPage;
  const FileDescriptor memory = device::create_memory(kBytes);
  kernel_.between_signals = 64 << 20;
  device::reserve_pages(memory.get(), 0, kBytes);
  EXPECT_TRUE(kernel_.interrupted.empty()) << "the first call asked for " << kernel_.interrupted[0];
  EXPECT_GE(pages_of(memory.get()), kBytes / kPage);
}

TEST_F(Segment, KeepsNothingWhereThereIsNotEnough) {
  constexpr std::size_t kBytes = 24 << 20;
  const FileDescriptor memory = device::create_memory(2 * kBytes);
  kernel_.between_signals = 1 << 20;
  device::reserve_pages(memory.get(), 0, kBytes);
  kernel_.memory = kernel_.given + (10 << 20);
  const std::string message = testing::message_of<MemoryError>(
      [&] { device::reserve_pages(memory.get(), kBytes, kBytes); });
  EXPECT_NE(message.find("24 MiB could not be reserved: No space left"), std::string::npos)
      << message;
  EXPECT_EQ(kernel_.taken_back, 1);
  EXPECT_EQ(pages_of(memory.get()), kBytes / kPage) << "what was there before stays";
}

}  // namespace
}  // namespace trireme

// In place of the C library's: the program's own comes first.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  return trireme::allocate(fd, mode, offset, length);
}
