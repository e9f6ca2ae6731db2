#include "trireme/observe/progress_line.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "support/processes.h"

namespace trireme {
namespace {

Progress example() {
  Progress progress;
  progress.step = 120;
  progress.steps = 500;
  progress.loss = 2.10338;
  progress.learning_rate = 3e-4;
  progress.per_second = 12'345;
  progress.unit = "tokens";
  progress.rank_bytes = 84'300'000;
  progress.seconds_left = 42;
  progress.note = "eval loss 1.234, accuracy 91.2 %";
  return progress;
}

TEST(ProgressText, SaysWhatAPersonWantsToKnow) {
  EXPECT_EQ(progress_text(example()),
            "step 120/500  loss 2.1034  lr 3.0e-04  12.3k tokens/s  84 MB/rank  0:42 left  eval "
            "loss 1.234, accuracy 91.2 %");
}

TEST(ProgressText, LeavesOutWhatIsNotKnown) {
  Progress progress;
  progress.step = 7;
  progress.loss = 1;
  EXPECT_EQ(progress_text(progress), "step 7  loss 1.0000  lr 0.0e+00");
  progress.loss = 2e-7;
  EXPECT_EQ(progress_text(progress), "step 7  loss 2.000e-07  lr 0.0e+00");
  progress.loss = std::nan("");
  EXPECT_EQ(progress_text(progress), "step 7  loss nan  lr 0.0e+00");
}

TEST(MeasureText, HasAboutFiveDigitsAtEverySize) {
  EXPECT_EQ(measure_text(0), "0.0000");
  EXPECT_EQ(measure_text(0.99944), "0.9994");
  EXPECT_EQ(measure_text(0.14), "0.1400");
  EXPECT_EQ(measure_text(0.021034), "0.02103");
  EXPECT_EQ(measure_text(0.00123456), "0.001235");
  EXPECT_EQ(measure_text(0.0000123456), "1.235e-05");
  EXPECT_EQ(measure_text(9.99994), "9.9999");
  EXPECT_EQ(measure_text(9.99996), "10.000");
  EXPECT_EQ(measure_text(256.126), "256.13");
  EXPECT_EQ(measure_text(-1234.56), "-1234.6");
  EXPECT_EQ(measure_text(99999.4), "99999");
  EXPECT_EQ(measure_text(123456.789), "123457");
  EXPECT_EQ(measure_text(9999999.4), "9999999");
  EXPECT_EQ(measure_text(12345678.9), "1.235e+07");
  EXPECT_EQ(measure_text(std::nan("")), "nan");
  EXPECT_EQ(measure_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(DurationText, IsShortAtEverySize) {
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(42), "0:42");
  EXPECT_EQ(duration_text(59.7), "1:00");
  EXPECT_EQ(duration_text(3599.4), "59:59");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(47 * 3600), "47:00:00");
  EXPECT_EQ(duration_text(2 * 86'400), "2 days");
  EXPECT_EQ(duration_text(13.6 * 86'400), "14 days");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

TEST(MegabytesText, CountsInPowersOfTen) {
  EXPECT_EQ(megabytes_text(0), "0 kB");
  EXPECT_EQ(megabytes_text(12'000), "12 kB");
  EXPECT_EQ(megabytes_text(1'240'000), "1.2 MB");
  EXPECT_EQ(megabytes_text(84'300'000), "84 MB");
  EXPECT_EQ(megabytes_text(999'400'000), "999 MB");
  EXPECT_EQ(megabytes_text(999'600'000), "1.0 GB");
  EXPECT_EQ(megabytes_text(1'240'000'000), "1.2 GB");
  EXPECT_EQ(megabytes_text(4'200'000'000'000), "4.2 TB");
}

TEST(CountText, KeepsThreeDigits) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(3.24), "3.2");
  EXPECT_EQ(count_text(64), "64");
  EXPECT_EQ(count_text(950), "950");
  EXPECT_EQ(count_text(999.7), "1.0k");
  EXPECT_EQ(count_text(12'345), "12.3k");
  EXPECT_EQ(count_text(999'960), "1.0M");
  EXPECT_EQ(count_text(4.5e6), "4.5M");
  EXPECT_EQ(count_text(std::nan("")), "?");
}

TEST(ProgressLine, ElsewhereThanOnATerminalIsOneLineForEachCall) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/out";
  std::FILE* out = std::fopen(path.c_str(), "w");
  Progress progress = example();
  progress.note = "two\nlines";
  {
    ProgressLine line(out);
    EXPECT_FALSE(line.live());
    line.show(progress);
    line.show(progress);  // at once: nothing is left out of a log
    line.message("saved");
    line.finish();
  }
  progress.note = "two lines";
  const std::string text = progress_text(progress) + "\n";
  EXPECT_EQ(testing::read_file(path), text + text + "saved\n");
  std::fclose(out);
}

// A terminal of 40 columns, and what has been written to it.
class Terminal {
 public:
  Terminal() : controller_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(controller_);
    unlockpt(controller_);
    const int terminal = open(ptsname(controller_), O_RDWR | O_NOCTTY);
    const winsize size{24, 40, 0, 0};
    ioctl(terminal, TIOCSWINSZ, &size);
    out_ = fdopen(terminal, "w");
    setenv("TERM", "xterm", 1);
  }
  ~Terminal() {
    std::fclose(out_);
    close(controller_);
  }

  std::FILE* out() { return out_; }

  // Everything written since the last call.
  std::string take() {
    std::string text;
    pollfd waiting{controller_, POLLIN, 0};
    while (poll(&waiting, 1, 50) > 0) {
      char buffer[4096];
      const ssize_t count = read(controller_, buffer, sizeof(buffer));
      if (count <= 0) {
        break;
      }
      text.append(buffer, static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  int controller_;
  std::FILE* out_ = nullptr;
};

std::string drawn(const Progress& progress, std::size_t columns = 39) {
  return "\r" + progress_text(progress).substr(0, columns) + "\x1b[K";
}

TEST(ProgressLine, OnATerminalIsRewrittenInPlaceAndCutToItsWidth) {
  Terminal terminal;
  Progress progress = example();
  ProgressLine line(terminal.out());
  EXPECT_TRUE(line.live());
  line.show(progress);
  EXPECT_EQ(terminal.take(), drawn(progress));
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  progress.step = 121;
  line.show(progress);
  EXPECT_EQ(terminal.take(), drawn(progress));
}

TEST(ProgressLine, IsNotRewrittenFasterThanOneCanRead) {
  Terminal terminal;
  Progress progress = example();
  ProgressLine line(terminal.out());
  const auto start = std::chrono::steady_clock::now();
  for (progress.step = 1; progress.step < 60;  // all of them fit into the terminal's buffer
       ++progress.step) {
    line.show(progress);
  }
  const auto passed = std::chrono::steady_clock::now() - start;
  const std::string text = terminal.take();
  const auto draws = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(draws, 1);
  EXPECT_LE(draws, 1 + passed / std::chrono::milliseconds(100));
  // The last state is shown in the end, although it came too soon.
  progress.step = 59;
  line.finish();
  EXPECT_EQ(terminal.take(), drawn(progress) + "\r\n");
  line.finish();
  EXPECT_EQ(terminal.take(), "");
}

TEST(ProgressLine, MessagesAppearAboveTheLiveLine) {
  Terminal terminal;
  {
    ProgressLine line(terminal.out());
    line.message("before");
    EXPECT_EQ(terminal.take(), "before\r\n");
    line.show(example());
    terminal.take();
    line.message("saved");
    EXPECT_EQ(terminal.take(), "\r\x1b[Ksaved\r\n" + drawn(example()));
  }
  EXPECT_EQ(terminal.take(), drawn(example()) + "\r\n");
}

TEST(ProgressLine, CutsBetweenCharacters) {
  Terminal terminal;
  Progress progress;
  progress.note = "ääääääääääääääääääääääää";
  ProgressLine line(terminal.out());
  line.show(progress);
  const std::string all = progress_text(progress);  // 32 columns before the note
  const std::size_t before = all.find("ä");
  EXPECT_EQ(terminal.take(), "\r" + all.substr(0, before + 2 * (39 - before)) + "\x1b[K");
}

TEST(ProgressLine, ATerminalThatCannotRewriteGetsPlainLines) {
  Terminal terminal;
  setenv("TERM", "dumb", 1);
  ProgressLine line(terminal.out());
  EXPECT_FALSE(line.live());
  setenv("TERM", "xterm", 1);
}

TEST(ProgressLine, OfNobodyShowsNothing) {
  ProgressLine line(nullptr);
  EXPECT_FALSE(line.live());
  line.show(example());
  line.message("saved");
  line.finish();
  EXPECT_FALSE(line.lost());
}

}  // namespace
}  // namespace trireme
