#include "launch/line_printer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "trireme/core/file_descriptor.h"

namespace trireme {
namespace {

// What the printer writes for the pieces it is given.
std::string printed(const std::vector<std::string>& pieces) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const FileDescriptor reader(fds[0]);
  FileDescriptor writer(fds[1]);
  detail::OutputQueue output(writer.get());
  detail::LinePrinter printer(output, 3, -1);
  for (const std::string& piece : pieces) {
    printer.add(piece);
  }
  printer.finish();
  output.flush();
  EXPECT_TRUE(output.empty());
  writer.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(reader.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

TEST(LinePrinter, PutsTheRankBeforeEveryLine) {
  EXPECT_EQ(printed({"one\ntwo\n"}), "[3] one\n[3] two\n");
}

TEST(LinePrinter, JoinsPiecesAndEndsTheLastLine) {
  EXPECT_EQ(printed({"on", "e\n", "", "tw", "o"}), "[3] one\n[3] two\n");
}

TEST(LinePrinter, KeepsEmptyLines) {
  EXPECT_EQ(printed({"\n\na\n"}), "[3] \n[3] \n[3] a\n");
}

TEST(LinePrinter, TakesCarriageReturnsAsLineEnds) {
  EXPECT_EQ(printed({"10%\r20%\r", "done\r", "\nnext\n"}),
            "[3] 10%\n[3] 20%\n[3] done\n[3] next\n");
}

TEST(LinePrinter, CutsEndlessLines) {
  const std::string text = printed({std::string(40'000, 'x')});
  EXPECT_EQ(text.size(), 40'000 + 5);
}

TEST(LinePrinter, RemembersTheLastLines) {
  detail::OutputQueue output(STDOUT_FILENO);
  detail::LinePrinter printer(output, 0, -1);
  for (int i = 0; i < 100; ++i) {
    printer.add(std::to_string(i) + "\n");
  }
  EXPECT_EQ(printer.last_lines().back(), "99");
  EXPECT_LT(printer.last_lines().size(), 20U);
}

}  // namespace
}  // namespace trireme
