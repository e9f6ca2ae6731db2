#include "trireme/core/pulse.h"

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trireme::pulse_test {
namespace {

// A process has one page for its whole life: each case needs a process of its own.
int in_child(const std::string& descriptor, const std::function<void()>& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    setenv(kEnvPulse, descriptor.c_str(), 1);
    work();
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

TEST(Pulse, IsSeenFromOutsideAlsoWhenTheRankIsDead) {
  const detail::PulseMemory memory;
  const PulsePage& page = memory.page();
  EXPECT_EQ(in_child(std::to_string(memory.descriptor()),
                     [] {
                       detail::mark(PulsePhase::kBatch);
                       detail::mark(PulsePhase::kOperator);
                       detail::pulse().step = 7;
                       const detail::PulseEngine engine;
                       const detail::PulseWait wait;
                       { const detail::PulseWait another; }
                       abort();
                     }) &
                0x7f,
            SIGABRT);
  EXPECT_EQ(page.marks, 2U);
  EXPECT_EQ(page.phase, static_cast<std::uint32_t>(PulsePhase::kOperator));
  EXPECT_EQ(page.step, 7);
  EXPECT_EQ(page.engines, 1U);
  EXPECT_EQ(page.waiting, 1U);
}

// Where a descriptor is something else by now, nothing of it is written.
TEST(Pulse, LeavesOtherMemoryAlone) {
  const int zeros = memfd_create("zeros", 0);
  ASSERT_EQ(ftruncate(zeros, PulsePage::kBytes), 0);
  for (const std::string& descriptor : {std::to_string(zeros), std::string("999"), std::string()}) {
    EXPECT_EQ(in_child(descriptor, [] { detail::mark(PulsePhase::kBatch); }), 0) << descriptor;
  }
  std::string text(PulsePage::kBytes, 'x');
  ASSERT_EQ(pread(zeros, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(text, std::string(PulsePage::kBytes, '\0'));
  close(zeros);
}

}  // namespace
}  // namespace trireme::pulse_test
