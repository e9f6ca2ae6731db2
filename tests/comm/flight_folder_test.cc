// Somebody else on the machine can put names where the records of a failure will go.

#include "comm/queue/flight_folder.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/queue/flight_recorder.h"
#include "comm/queue/old_flights.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::FlightFolder;
using testing::message_of;
using testing::read_file;

constexpr char kRecord[] = "flight-rank-0.json";
constexpr char kJob[] = "0123456789ab";

struct stat status_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status;
}

class FlightFolderTest : public ::testing::Test {
 protected:
  FlightFolderTest() {
    if (const char* before = getenv("TMPDIR")) {
      before_ = before;
    }
    setenv("TMPDIR", base_.path().c_str(), 1);
  }
  ~FlightFolderTest() override {
    if (before_.empty()) {
      unsetenv("TMPDIR");
    } else {
      setenv("TMPDIR", before_.c_str(), 1);
    }
  }

  // What any user can make in a temporary folder before we do.
  std::string ours() const { return detail::concat(base_.path(), "/trireme-", geteuid()); }
  std::string precious() const {
    std::ofstream(base_.path() + "/precious") << "precious";
    return base_.path() + "/precious";
  }
  // The record is not written, and all of `parts` say why.
  static void expect_refused(const std::vector<std::string>& parts) {
    const std::string message =
        message_of<Error>([] { FlightFolder::temporary(kJob).write(kRecord, "a record"); });
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    EXPECT_NE(message.find("TRIREME_LOG_DIR"), std::string::npos) << message;
  }

  testing::TemporaryFolder base_;

 private:
  std::string before_;
};

TEST_F(FlightFolderTest, IsClosedToOthers) {
  const mode_t before = umask(0);
  const std::string path = FlightFolder::temporary(kJob).write(kRecord, "a record");
  umask(before);
  EXPECT_EQ(path, ours() + "/" + kJob + "/" + kRecord);
  EXPECT_EQ(read_file(path), "a record");
  for (const std::string& folder : {ours(), ours() + "/" + kJob}) {
    EXPECT_EQ(status_of(folder).st_mode & 07777, 0700U) << folder;
  }
}

TEST_F(FlightFolderTest, WritesWhatIsNewerOverWhatIsOlder) {
  const FlightFolder folder = FlightFolder::temporary(kJob);
  folder.write(kRecord, "an older and longer record");
  EXPECT_EQ(read_file(folder.write(kRecord, "a newer one")), "a newer one");
  // Nothing else is left there.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

// Whatever has the record's name is replaced; nothing is written through it, and nobody waited for.
TEST_F(FlightFolderTest, DoesNotFollowALinkInThePlaceOfTheRecord) {
  const std::string target = precious();
  const std::string shared = base_.path() + "/shared";
  fs::create_directory(shared);
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  const std::string record = shared + "/" + kRecord;
  ASSERT_EQ(symlink(target.c_str(), record.c_str()), 0);
  FlightFolder::named(shared).write(kRecord, "a record");
  EXPECT_EQ(read_file(target), "precious");
  EXPECT_TRUE(S_ISREG(status_of(record).st_mode));
  EXPECT_EQ(read_file(record), "a record");

  ASSERT_EQ(unlink(record.c_str()), 0);
  ASSERT_EQ(link(target.c_str(), record.c_str()), 0);
  FlightFolder::named(shared).write(kRecord, "a record");
  EXPECT_EQ(read_file(target), "precious");

  ASSERT_EQ(unlink(record.c_str()), 0);
  ASSERT_EQ(mkfifo(record.c_str(), 0666), 0);
  FlightFolder::named(shared).write(kRecord, "a record");
  EXPECT_EQ(read_file(record), "a record");
}

// The folder was looked at when the job began, and made when it failed; the link came in between.
TEST_F(FlightFolderTest, RefusesALinkThatCameLater) {
  const FlightFolder folder = FlightFolder::temporary(kJob);
  const std::string elsewhere = base_.path() + "/elsewhere";
  fs::create_directory(elsewhere);
  ASSERT_EQ(symlink(elsewhere.c_str(), ours().c_str()), 0);
  const std::string message = message_of<Error>([&] { folder.write(kRecord, "a record"); });
  EXPECT_NE(message.find(ours()), std::string::npos) << message;
  EXPECT_NE(message.find("found a link"), std::string::npos) << message;
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(FlightFolderTest, RefusesALinkInThePlaceOfTheJob) {
  const std::string elsewhere = base_.path() + "/elsewhere";
  fs::create_directory(elsewhere);
  fs::create_directory(ours());
  ASSERT_EQ(chmod(ours().c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), (ours() + "/" + kJob).c_str()), 0);
  expect_refused({ours() + "/" + kJob, "found a link"});
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(FlightFolderTest, RefusesAFolderThatOthersCanWrite) {
  fs::create_directory(ours());
  for (const mode_t mode : {0777, 0770, 0707}) {
    ASSERT_EQ(chmod(ours().c_str(), mode), 0);
    expect_refused({"chmod go-w " + ours()});
  }
  ASSERT_EQ(chmod(ours().c_str(), 0755), 0);
  EXPECT_EQ(read_file(FlightFolder::temporary(kJob).write(kRecord, "a record")), "a record");
}

TEST_F(FlightFolderTest, RefusesAFolderOfAnotherUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can make a folder of another user";
  }
  constexpr uid_t kNobody = 65534;
  fs::create_directory(ours());
  ASSERT_EQ(chmod(ours().c_str(), 0755), 0);
  ASSERT_EQ(chown(ours().c_str(), kNobody, kNobody), 0);
  expect_refused({"found one of user 65534", ours()});
  EXPECT_TRUE(fs::is_empty(ours()));
}

TEST_F(FlightFolderTest, AFileInItsPlaceIsRefused) {
  std::ofstream(ours()) << "a file";
  expect_refused({ours(), "not a folder"});
}

// The message of the failure says it; the failure itself is not replaced.
TEST_F(FlightFolderTest, ARecorderSaysWhyThereIsNoRecord) {
  const detail::FlightRecorder recorder;
  const FlightFolder folder = FlightFolder::temporary(kJob);
  EXPECT_EQ(recorder.write(folder, 0, 1, "a reason"),
            "flight record: " + folder.path() + "/" + kRecord);
  fs::remove_all(ours());
  ASSERT_EQ(symlink("/nowhere", ours().c_str()), 0);
  EXPECT_EQ(recorder.write(folder, 0, 1, "a reason").find("no flight record: "), 0U);
}

class OldFlights : public FlightFolderTest {
 protected:
  static constexpr std::time_t kNow = 1'800'000'000;
  static constexpr std::time_t kDay = 86400;

  // The record of a job, written so many days ago.
  std::string record(const std::string& digest, double days) {
    const std::string path = FlightFolder::temporary(digest).write(kRecord, "a record");
    const auto then = kNow - static_cast<std::time_t>(days * kDay);
    const timespec times[2] = {{then, 0}, {then, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, fs::path(path).parent_path().c_str(), times, 0), 0);
    return path;
  }
  void remove(std::time_t jobs_since = kNow) const {
    detail::remove_old_flights(ours(), kNow, jobs_since);
  }
};

TEST_F(OldFlights, AreTakenAwayWhereTheyAreOldOrMany) {
  const std::string old = record("00000000000a", 7.5);
  const std::string kept = record("00000000000b", 6.5);
  std::vector<std::string> many;
  for (int i = 0; i < 101; ++i) {
    char digest[13];
    std::snprintf(digest, sizeof(digest), "%012x", 0x100 + i);
    many.push_back(record(digest, 2 + i / 1000.0));
  }
  const std::string recent = record("00000000000c", 0.9);
  remove();
  EXPECT_FALSE(fs::exists(fs::path(old).parent_path()));
  EXPECT_TRUE(fs::exists(recent));
  // With the recent one, 99 of the others are the newest hundred.
  EXPECT_TRUE(fs::exists(many[98]));
  EXPECT_FALSE(fs::exists(many[99]));
  EXPECT_FALSE(fs::exists(kept));
}

TEST_F(OldFlights, OfAJobThatRunsStay) {
  const std::string before = record("00000000000a", 12);
  const std::string since = record("00000000000b", 9);
  remove(kNow - 10 * kDay);
  EXPECT_FALSE(fs::exists(before));
  EXPECT_TRUE(fs::exists(since));
}

TEST_F(OldFlights, AJobRunsForAsLongAsAProcessHasItsName) {
  const std::time_t began = std::time(nullptr);
  const testing::Program job({"sleep", "60"}, {"TRIREME_JOB=of this test"});
  std::this_thread::sleep_for(std::chrono::seconds(3));
  // Another job may run, and be older.
  EXPECT_LE(detail::jobs_run_since(std::time(nullptr)), began + 1);
}

TEST_F(OldFlights, AreTakenAwayAsAJobBegins) {
  const fs::path folder = fs::path(record("00000000000a", 0)).parent_path();
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, folder.c_str(), times, 0), 0);
  const std::shared_ptr<World> world = init();
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(OldFlights, NothingElseIsTakenAway) {
  const std::string target = precious();
  fs::create_directory(base_.path() + "/elsewhere");
  std::ofstream(base_.path() + "/elsewhere/" + kRecord) << "a record";
  const std::string old = record("00000000000a", 30);
  const fs::path folder = fs::path(old).parent_path();
  std::ofstream(folder / "notes") << "of the user";
  ASSERT_EQ(symlink((base_.path() + "/elsewhere").c_str(), (ours() + "/00000000000d").c_str()), 0);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (ours() + "/00000000000d").c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  ASSERT_EQ(utimensat(AT_FDCWD, folder.c_str(), times, 0), 0);
  fs::create_directory(ours() + "/of the user");
  ASSERT_EQ(utimensat(AT_FDCWD, (ours() + "/of the user").c_str(), times, 0), 0);
  remove();
  EXPECT_TRUE(fs::exists(folder / "notes"));
  EXPECT_TRUE(fs::exists(base_.path() + "/elsewhere/" + kRecord));
  EXPECT_TRUE(fs::exists(ours() + "/of the user"));
  EXPECT_EQ(read_file(target), "precious");
}

// A folder that the user has named may be a link, and is made with the folders above it.
TEST_F(FlightFolderTest, AFolderThatWasNamedMayBeALink) {
  const std::string disk = base_.path() + "/disk";
  fs::create_directory(disk);
  const std::string logs = base_.path() + "/logs";
  ASSERT_EQ(symlink(disk.c_str(), logs.c_str()), 0);
  EXPECT_EQ(FlightFolder::named(logs + "/a/b").write(kRecord, "a record"),
            logs + "/a/b/" + kRecord);
  EXPECT_EQ(read_file(disk + "/a/b/" + kRecord), "a record");
}

}  // namespace
}  // namespace trireme
