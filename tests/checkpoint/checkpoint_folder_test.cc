// Which checkpoints a folder has, which is the newest, which stay: states of the folder as every
// order of events leaves them, made by hand.

#include "trireme/checkpoint/checkpoint_folder.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "trireme/core/error.h"

// A file system that cannot exchange names (NFS), and what may happen where a checkpoint gets its
// own.
namespace {
enum class Naming { kWorks, kFails, kIsKilled };
std::atomic<bool> exchanges_names{true};
std::atomic<Naming> naming{Naming::kWorks};
}  // namespace

extern "C" int renameat2(
    int at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  if ((flags & RENAME_EXCHANGE) != 0 && !exchanges_names) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, at, from, to_at, to, flags));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (naming != Naming::kWorks && std::strstr(from, "/.step-") != nullptr) {
    if (naming == Naming::kIsKilled) {
      raise(SIGKILL);
    }
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;

using Steps = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

// A complete checkpoint of nothing, under any name.
void make(const std::string& path, std::int64_t step, std::int64_t sequence) {
  Manifest manifest;
  manifest.step = step;
  manifest.sequence = sequence;
  fs::create_directories(path);
  std::ofstream(path + "/" + Manifest::kFileName) << manifest.to_json();
}

class FolderOfCheckpoints : public ::testing::Test {
 protected:
  void make(std::int64_t step, std::int64_t sequence) {
    trireme::make(folder_.path_of(step), step, sequence);
  }
  void write_latest(const std::string& text) {
    std::ofstream(temporary_.path() + "/latest") << text;
  }

  TemporaryFolder temporary_;
  CheckpointFolder folder_{temporary_.path()};
};

TEST_F(FolderOfCheckpoints, NamesAreStepsAndBack) {
  EXPECT_EQ(CheckpointFolder::name_of(0), "step-00000000");
  EXPECT_EQ(CheckpointFolder::name_of(123), "step-00000123");
  EXPECT_EQ(CheckpointFolder::name_of(12'345'678'901), "step-12345678901");
  for (const std::int64_t step : {std::int64_t{0},
                                  std::int64_t{7},
                                  std::int64_t{99'999'999},
                                  std::int64_t{100'000'000},
                                  std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(CheckpointFolder::step_of(CheckpointFolder::name_of(step)), step);
  }
  for (const char* name : {"",
                           "step-",
                           "step-1",
                           "step-0000000a",
                           "step-00000001 ",
                           "step-000000001",
                           "step--0000001",
                           "step-+0000001",
                           " step-00000001",
                           "Step-00000001",
                           ".step-00000001",
                           "step-99999999999999999999",
                           "step-00000001/"}) {
    EXPECT_EQ(CheckpointFolder::step_of(name), std::nullopt) << name;
  }
}

TEST_F(FolderOfCheckpoints, AFolderThatIsNotThereIsEmpty) {
  const CheckpointFolder none(temporary_.path() + "/nowhere/at all");
  EXPECT_EQ(none.steps(), Steps());
  EXPECT_EQ(none.newest(), std::nullopt);
  EXPECT_EQ(none.last_sequence(), 0);
  EXPECT_EQ(none.unfinished(), Names());
}

TEST_F(FolderOfCheckpoints, AFileInItsPlaceIsNamed) {
  const std::string path = temporary_.path() + "/file";
  std::ofstream(path) << "text";
  EXPECT_NE(message_of<CheckpointError>([&] { CheckpointFolder(path).steps(); }).find(path),
            std::string::npos);
}

TEST_F(FolderOfCheckpoints, OneThatHasLostItsManifestIsDamagedAndNotAbsent) {
  make(10, 1);
  make(20, 2);
  folder_.set_latest(20);
  fs::remove(folder_.path_of(20) + "/" + Manifest::kFileName);
  EXPECT_EQ(folder_.steps(), (Steps{10, 20}));
  EXPECT_EQ(folder_.newest(), 20) << "an older one would be taken in silence";
}

TEST_F(FolderOfCheckpoints, OnlyPublishedOnesCount) {
  make(3, 1);
  make(20, 2);
  make(100'000'000, 3);
  std::ofstream(folder_.path_of(5)) << "a file";
  trireme::make(temporary_.path() + "/.step-00000007-4", 7, 4);  // not published
  trireme::make(temporary_.path() + "/step-8", 8, 5);            // not its name
  EXPECT_EQ(folder_.steps(), (Steps{3, 20, 100'000'000}));
  EXPECT_EQ(folder_.last_sequence(), 3);
  EXPECT_EQ(folder_.newest(), 100'000'000);
  EXPECT_EQ(folder_.unfinished(), Names{".step-00000007-4"});
}

TEST_F(FolderOfCheckpoints, TheNewestIsTheOneWrittenLast) {
  make(10, 1);
  make(20, 2);
  EXPECT_EQ(folder_.newest(), 20) << "no latest: the order of writing";
  make(5, 3);
  EXPECT_EQ(folder_.newest(), 5) << "whatever its step";
  folder_.set_latest(5);
  EXPECT_EQ(folder_.newest(), 5);
  EXPECT_EQ(read_file(temporary_.path() + "/latest"), "step-00000005 3\n");
}

// Killed after the checkpoint had its name, before `latest` was written.
TEST_F(FolderOfCheckpoints, ALatestThatIsOneBehindIsNotBelieved) {
  make(10, 1);
  folder_.set_latest(10);
  make(20, 2);
  EXPECT_EQ(folder_.newest(), 20);
  EXPECT_EQ(folder_.last_sequence(), 2);
}

TEST_F(FolderOfCheckpoints, GoingBackLastsUntilSomethingIsWritten) {
  make(10, 1);
  make(20, 2);
  make(30, 3);
  folder_.set_latest(30);
  folder_.set_latest(10);  // resumed from it
  EXPECT_EQ(folder_.newest(), 10);
  make(12, 4);  // and killed before latest was written
  EXPECT_EQ(folder_.newest(), 12);
  folder_.set_latest(12);
  EXPECT_EQ(folder_.newest(), 12);
  make(20, 5);  // one of the given-up future is written again
  EXPECT_EQ(folder_.newest(), 20);
}

TEST_F(FolderOfCheckpoints, ALatestThatMakesNoSenseIsNotBelieved) {
  make(10, 1);
  make(20, 2);
  for (const char* text : {"",
                           "step-00000010",
                           "step-00000010 x",
                           "nonsense 7",
                           "step-00000099 2",
                           "\xff\xfe",
                           "step-00000010 -5",
                           "../step-00000010 9"}) {
    write_latest(text);
    EXPECT_EQ(folder_.newest(), 20) << text;
  }
  fs::remove(temporary_.path() + "/latest");
  fs::create_directories(temporary_.path() + "/latest");
  EXPECT_EQ(folder_.newest(), 20) << "a folder";
}

// Sequence numbers must not be used again, though the checkpoints that had them are gone.
TEST_F(FolderOfCheckpoints, SequenceNumbersOutliveTheirCheckpoints) {
  make(10, 1);
  make(20, 2);
  make(30, 3);
  folder_.set_latest(30);
  folder_.remove(30);
  EXPECT_EQ(folder_.last_sequence(), 3);
  EXPECT_EQ(folder_.newest(), 20);
  make(25, 4);
  EXPECT_EQ(folder_.newest(), 25);
}

TEST_F(FolderOfCheckpoints, AManifestWithoutASequenceIsTheOldest) {
  make(10, 1);
  fs::create_directories(folder_.path_of(20));
  std::ofstream(folder_.path_of(20) + "/" + Manifest::kFileName) << "{}";
  EXPECT_EQ(folder_.newest(), 10);
  EXPECT_EQ(folder_.superfluous({.keep_last = 1, .keep_every = 0}, 10), Steps{20});
}

TEST_F(FolderOfCheckpoints, WhatAResumedRunHasGivenUpIsTheFirstToGo) {
  make(1000, 1);
  make(2000, 2);
  make(3000, 3);
  make(2100, 4);  // resumed from 2000
  EXPECT_EQ(folder_.superfluous({.keep_last = 2, .keep_every = 0}, 2100), (Steps{1000, 3000}));
  EXPECT_EQ(folder_.superfluous({.keep_last = 3, .keep_every = 0}, 2100), Steps{3000});
}

TEST_F(FolderOfCheckpoints, RetentionKeepsTheNewestAndTheMarked) {
  for (std::int64_t i = 1; i <= 9; ++i) {
    make(10 * i, i);
  }
  EXPECT_EQ(folder_.superfluous({}, 90), Steps());
  EXPECT_EQ(folder_.superfluous({.keep_last = 9, .keep_every = 0}, 90), Steps());
  EXPECT_EQ(folder_.superfluous({.keep_last = 100, .keep_every = 0}, 90), Steps());
  EXPECT_EQ(folder_.superfluous({.keep_last = 0, .keep_every = 20}, 90), Steps());
  EXPECT_EQ(folder_.superfluous({.keep_last = 7, .keep_every = 0}, 90), (Steps{10, 20}));
  EXPECT_EQ(folder_.superfluous({.keep_last = 7, .keep_every = 0}, 10), Steps{20});
  EXPECT_EQ(folder_.superfluous({.keep_last = 2, .keep_every = 30}, 90),
            (Steps{10, 20, 40, 50, 70}));
  EXPECT_EQ(folder_.prune({.keep_last = 2, .keep_every = 30}, 90), (Steps{10, 20, 40, 50, 70}));
  EXPECT_EQ(folder_.steps(), (Steps{30, 60, 80, 90}));
  EXPECT_EQ(folder_.unfinished(), Names());
  EXPECT_EQ(folder_.prune({.keep_last = 2, .keep_every = 30}, 90), Steps());
}

// What was just written stays, and what it came from.
TEST_F(FolderOfCheckpoints, RetentionAfterGoingBackKeepsWhatIsNew) {
  make(10, 1);
  make(20, 2);
  make(30, 3);
  make(12, 4);
  EXPECT_EQ(folder_.prune({.keep_last = 2, .keep_every = 0}, 12), (Steps{20, 30}));
  make(14, 5);
  EXPECT_EQ(folder_.prune({.keep_last = 2, .keep_every = 0}, 14), Steps{10});
  EXPECT_EQ(folder_.steps(), (Steps{12, 14}));
}

TEST_F(FolderOfCheckpoints, OneThatIsGoneAlreadyNeedsNoRemoving) {
  make(10, 1);
  folder_.remove(10);
  EXPECT_NO_THROW(folder_.remove(10));
}

TEST_F(FolderOfCheckpoints, PublishingReplacesWhatHadTheName) {
  make(10, 1);
  std::ofstream(folder_.path_of(10) + "/old") << "old";
  const std::string finished = temporary_.path() + "/.step-00000010-2";
  trireme::make(finished, 10, 2);
  folder_.publish(finished, 10);
  EXPECT_FALSE(fs::exists(finished));
  EXPECT_FALSE(fs::exists(folder_.path_of(10) + "/old"));
  EXPECT_EQ(Manifest::read(folder_.path_of(10)).sequence, 2);
  EXPECT_EQ(folder_.newest(), 10);
  // Also where the name belongs to something that is no checkpoint.
  std::ofstream(folder_.path_of(11)) << "a file";
  const std::string other = temporary_.path() + "/.step-00000011-3";
  trireme::make(other, 11, 3);
  folder_.publish(other, 11);
  EXPECT_EQ(folder_.steps(), (Steps{10, 11}));
}

// A kill at any moment of it leaves one of the two.
TEST_F(FolderOfCheckpoints, AReplacedOneIsThereAtEveryMoment) {
  make(10, 1);
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    int missing = 0;
    while (!done) {
      missing += folder_.contains(10) ? 0 : 1;
    }
    EXPECT_EQ(missing, 0);
  });
  for (std::int64_t sequence = 2; sequence < 300; ++sequence) {
    const std::string finished = detail::concat(temporary_.path(), "/.step-00000010-", sequence);
    trireme::make(finished, 10, sequence);
    folder_.publish(finished, 10);
  }
  done = true;
  watcher.join();
}

// Replacing where names cannot be exchanged.
class ReplacingByHand : public FolderOfCheckpoints {
 protected:
  void SetUp() override {
    make(10, 1);
    trireme::make(finished_, 10, 2);
    folder_.set_latest(10);
    exchanges_names = false;
  }
  void TearDown() override {
    exchanges_names = true;
    naming = Naming::kWorks;
  }
  std::int64_t sequence() const { return Manifest::read(folder_.path_of(10)).sequence; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), {}));
  }
  const std::string finished_ = temporary_.path() + "/.step-00000010-2";
};

TEST_F(ReplacingByHand, LeavesTheNewOneAlone) {
  folder_.publish(finished_, 10);
  EXPECT_EQ(sequence(), 2);
  EXPECT_EQ(entries(), 2U) << "it and latest";
}

TEST_F(ReplacingByHand, LeavesTheOldOneWhereTheNewOneGetsNoName) {
  naming = Naming::kFails;
  EXPECT_NE(message_of<CheckpointError>([&] { folder_.publish(finished_, 10); }).find(finished_),
            std::string::npos);
  EXPECT_EQ(sequence(), 1);
}

TEST_F(ReplacingByHand, LosesNotBothWhenItIsKilledInBetween) {
  const pid_t pid = testing::fork_rank(0, [&](int) {
    naming = Naming::kIsKilled;
    folder_.publish(finished_, 10);
  });
  EXPECT_TRUE(WIFSIGNALED(testing::wait_for(pid)));
  EXPECT_FALSE(folder_.contains(10)) << "it was not in between";
  fs::create_directories(temporary_.path() + "/.replaced-nonsense");
  folder_.remove_unfinished();  // what the next job does first
  EXPECT_EQ(sequence(), 1);
  EXPECT_EQ(folder_.newest(), 10);
  EXPECT_EQ(entries(), 3U) << "it, latest, and what is nobody's";
}

// Killed after the new one had its name.
TEST_F(ReplacingByHand, AnOldOneThatIsStillAsideGoes) {
  const std::string aside = temporary_.path() + "/.replaced-step-00000010-77";
  trireme::make(aside, 10, 0);
  EXPECT_EQ(folder_.steps(), Steps{10});
  folder_.remove_unfinished();
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(sequence(), 1);
}

TEST_F(FolderOfCheckpoints, BestWeightsGoWithTheirCheckpoints) {
  for (const std::int64_t step : {10, 20, 30}) {
    make(step, step);
    std::ofstream(temporary_.path() + "/.best-" + CheckpointFolder::name_of(step)) << "weights";
  }
  std::ofstream(temporary_.path() + "/.best-of-all") << "somebody's";
  folder_.prune({.keep_last = 1, .keep_every = 0}, 30);
  folder_.remove_unfinished();
  EXPECT_FALSE(fs::exists(temporary_.path() + "/.best-step-00000010"));
  EXPECT_FALSE(fs::exists(temporary_.path() + "/.best-step-00000020"));
  EXPECT_TRUE(fs::exists(temporary_.path() + "/.best-step-00000030"));
  EXPECT_TRUE(fs::exists(temporary_.path() + "/.best-of-all"));
}

TEST_F(FolderOfCheckpoints, WhatKilledRunsLeftIsClearedAway) {
  make(10, 1);
  trireme::make(temporary_.path() + "/.step-00000020-2", 20, 2);
  trireme::make(temporary_.path() + "/.removed-step-00000005-77", 5, 0);
  std::ofstream(temporary_.path() + "/.latest-77") << "half";
  std::ofstream(temporary_.path() + "/notes.txt") << "somebody's";
  std::ofstream(temporary_.path() + "/.hidden") << "somebody's";
  folder_.set_latest(10);
  EXPECT_EQ(folder_.unfinished(),
            (Names{".latest-77", ".removed-step-00000005-77", ".step-00000020-2"}));
  folder_.remove_unfinished();
  EXPECT_EQ(folder_.unfinished(), Names());
  EXPECT_EQ(folder_.steps(), Steps{10});
  EXPECT_TRUE(fs::exists(temporary_.path() + "/notes.txt"));
  EXPECT_TRUE(fs::exists(temporary_.path() + "/.hidden"));
  EXPECT_TRUE(fs::exists(temporary_.path() + "/latest"));
}

TEST_F(FolderOfCheckpoints, AWriterGoesOnCountingAndPrunes) {
  const std::vector<testing::MadeTensor> tensors = {
      testing::random_tensor(kWeightKind, "a", Dtype::kFloat32, {11})};
  testing::spawn_world(2, [&](World& world) {
    const testing::SplitState state(tensors, testing::even_split, 2, world.rank());
    for (const std::int64_t first : {0, 2}) {  // a second run goes on from step 20
      CheckpointOptions options = testing::waiting();
      options.retention = {.keep_last = 2, .keep_every = 40};
      CheckpointWriter writer(temporary_.path(), testing::borrowed(world), options);
      for (std::int64_t i = first + 1; i <= first + 4; ++i) {
        writer.save(10 * i, state.view(), {});
      }
    }
  });
  // Saved in this order: 10 20 30 40, then 30 40 50 60.
  EXPECT_EQ(folder_.steps(), (Steps{40, 50, 60}));
  EXPECT_EQ(folder_.last_sequence(), 8);
  EXPECT_EQ(folder_.newest(), 60);
  EXPECT_EQ(Manifest::read(folder_.path_of(40)).sequence, 6);
  EXPECT_EQ(read_file(temporary_.path() + "/latest"), "step-00000060 8\n");
  EXPECT_EQ(folder_.unfinished(), Names());
}

TEST(FolderLock, ASecondJobIsRefusedAndTheHolderNamed) {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/checkpoints";
  std::string text;
  {
    const FolderLock first(place);
    text = message_of<ConfigError>([&] { const FolderLock second(place); });
    EXPECT_NE(text.find(detail::concat("process ", getpid(), " on ")), std::string::npos) << text;
    EXPECT_NE(text.find(place), std::string::npos) << text;
    // A writer, too, on every rank.
    testing::fork_world(2, [&](World& world) {
      const std::string refused = message_of<ConfigError>(
          [&] { const CheckpointWriter writer(place, testing::borrowed(world)); });
      EXPECT_NE(refused.find(detail::concat("process ", getppid(), " on ")), std::string::npos)
          << refused;
    });
  }
  EXPECT_NO_THROW(FolderLock again(place));
}

TEST(FolderLock, IsLetGoWhenItsHolderIsKilled) {
  const TemporaryFolder folder;
  const pid_t pid = testing::fork_rank(0, [&](int) {
    const FolderLock lock(folder.path());
    raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(testing::wait_for(pid)));
  EXPECT_NO_THROW(FolderLock again(folder.path()));
}

TEST(FolderLock, FollowsNoLinkAndWaitsForNoPipe) {
  const TemporaryFolder folder;
  const std::string victim = folder.path() + "/victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, folder.path() + "/.lock");
  EXPECT_NE(message_of<ConfigError>([&] { FolderLock lock(folder.path()); }).find(".lock"),
            std::string::npos);
  EXPECT_EQ(read_file(victim), "precious");
  fs::remove(folder.path() + "/.lock");
  ASSERT_EQ(mkfifo((folder.path() + "/.lock").c_str(), 0600), 0);
  FolderLock::check_free(folder.path());  // returns
}

}  // namespace
}  // namespace trireme
