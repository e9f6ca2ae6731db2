#include "trireme/observe/line_file.h"

#include <functional>

#include <gtest/gtest.h>

#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::read_file;
using testing::TemporaryFolder;

TEST(LineFile, BeginsANewFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lines";
  write_whole_file(path, "old\n");
  LineFile file(path);
  EXPECT_EQ(read_file(path), "");
  file.add("one");
  file.flush();
  file.sync();
  EXPECT_EQ(read_file(path), "one\n");
}

TEST(LineFile, GoesOnAfterWhatIsKept) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lines";
  write_whole_file(path, "one\ntwo\nhal");
  {
    LineFile file(path, 4);
    EXPECT_EQ(read_file(path), "one\n");
    file.add("three");
    file.add("four");
  }
  EXPECT_EQ(read_file(path), "one\nthree\nfour\n");
  LineFile file(folder.path() + "/new", 0);
  file.add("first");
  file.flush();
  EXPECT_EQ(read_file(file.path()), "first\n");
}

TEST(LineFile, NamesWhatCannotBeMade) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/none/lines";
  for (const auto& make : {std::function<void()>([&] { LineFile file(path); }),
                           std::function<void()>([&] { LineFile file(path, 3); })}) {
    try {
      make();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme
