// Disks that are full, files that may not grow, folders that may not be written: the reason is
// named on every rank, what was complete stays complete, and the next save works once there is
// room.

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::borrowed;
using testing::even_split;
using testing::fork_world;
using testing::load_split;
using testing::MadeTensor;
using testing::message_of;
using testing::random_tensor;
using testing::SplitState;
using testing::TemporaryFolder;
using testing::whole_split;

constexpr std::int64_t kMiB = 1 << 20;
constexpr int kNotAllowed = 77;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

// A mount namespace of this process's own, for which a plain user needs one of users, too.
bool separate_mounts() {
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return false;
    }
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", detail::concat("0 ", user, " 1"));
    write_text("/proc/self/gid_map", detail::concat("0 ", group, " 1"));
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Runs the body in a process that sees a small file system of its own at `path`.
void on_small_disk(const std::string& options,
                   const std::function<void(const std::string& path)>& body) {
  const TemporaryFolder folder;
  const pid_t pid = testing::fork_rank(0, [&](int) {
    if (!separate_mounts() ||
        mount("none", folder.path().c_str(), "tmpfs", 0, options.c_str()) != 0) {
      _exit(kNotAllowed);
    }
    body(folder.path());
  });
  const int status = testing::wait_for(pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  EXPECT_EQ(status, 0);
}

// Tensor 0 is rank 0's, tensor 1 rank 1's.
std::vector<MadeTensor> state_of(std::int64_t first, std::int64_t second) {
  return {random_tensor(kWeightKind, "a", Dtype::kUint8, {first}),
          random_tensor(kWeightKind, "b", Dtype::kUint8, {second})};
}

// A job of two ranks of which a save fails, and what it leaves.
struct FailingSave {
  std::vector<MadeTensor> tensors;
  Notes notes;
  std::string reason;
  std::function<void(int rank)> before{};  // in each rank
  std::function<void()> make_room{};

  void run(const std::string& folder) const {
    const auto good = state_of(100'003, 50'021);
    testing::save_split(folder, 1, good, whole_split, 2);
    fork_world(2, [&](World& world) {
      alarm(60);  // a hang is a failure
      if (before) {
        before(world.rank());
      }
      const SplitState state(tensors, whole_split, 2, world.rank());
      CheckpointWriter writer(folder, borrowed(world));
      const std::string text = message_of<CheckpointError>([&] {
        writer.save(2, state.view(), notes);
        writer.finish();
      });
      EXPECT_TRUE(has(text, reason)) << text;
      EXPECT_TRUE(has(text, folder)) << text;
      EXPECT_FALSE(has(text, "No such file")) << text;
      EXPECT_EQ(writer.failure(), text);
    });
    const CheckpointFolder checkpoints(folder);
    EXPECT_EQ(checkpoints.steps(), std::vector<std::int64_t>{1});
    EXPECT_EQ(checkpoints.newest(), 1);
    EXPECT_EQ(checkpoints.unfinished(), std::vector<std::string>()) << "rubbish";
    EXPECT_EQ(verify_checkpoint(checkpoints.path_of(1)), std::vector<std::string>());
    // Room was made, or less is saved.
    if (make_room) {
      make_room();
    }
    testing::save_split(folder, 2, good, whole_split, 2);
    EXPECT_EQ(load_split(checkpoints.path_of(2), good, even_split, 3), std::vector<std::string>());
  }
};

TEST(FullDisk, OneRankHasNoRoom) {
  on_small_disk("size=4m", [](const std::string& path) {
    FailingSave{state_of(1'000, 16 * kMiB), {}, "No space left on device"}.run(path + "/run");
  });
}

// Long before they next wait for each other.
TEST(FullDisk, ThoseWhoHaveRoomHearOfItThroughTheFolder) {
  on_small_disk("size=4m", [](const std::string& path) {
    const auto tensors = state_of(1'000, 16 * kMiB);
    fork_world(2, [&](World& world) {
      alarm(60);
      const SplitState state(tensors, whole_split, 2, world.rank());
      CheckpointWriter writer(path, borrowed(world));
      writer.save(1, state.view(), {});
      while (writer.failure().empty()) {
        usleep(1000);
      }
      const std::string text = message_of<CheckpointError>([&] { writer.check(); });
      EXPECT_TRUE(has(text, "No space left on device")) << text;
      EXPECT_EQ(has(text, "rank 1: "), world.rank() == 0) << text;
      EXPECT_EQ(message_of<CheckpointError>([&] { writer.finish(); }), text);
    });
    EXPECT_EQ(CheckpointFolder(path).unfinished(), std::vector<std::string>());
  });
}

TEST(FullDisk, TheFirstRankHasNoRoom) {
  on_small_disk("size=4m", [](const std::string& path) {
    FailingSave{state_of(16 * kMiB, 1'000), {}, "No space left on device"}.run(path + "/run");
  });
}

TEST(FullDisk, NobodyHasRoom) {
  on_small_disk("size=4m", [](const std::string& path) {
    FailingSave{state_of(9 * kMiB, 9 * kMiB), {}, "No space left on device"}.run(path + "/run");
  });
}

TEST(FullDisk, ThereIsNoRoomForTheManifest) {
  on_small_disk("size=4m", [](const std::string& path) {
    FailingSave{
        state_of(1'000, 1'000), {{"note", std::string(8 * kMiB, 'x')}}, "No space left on device"}
        .run(path + "/run");
  });
}

// Not even an empty file: the failing rank cannot tell the others through the folder.
TEST(FullDisk, NotOneFileMoreCanBeMade) {
  // The disk's root, the run's folder, its lock, `latest`, the checkpoint with three files: 8. The
  // next save makes a folder and has room for none to two of its four files.
  for (const int files : {9, 10, 11}) {
    on_small_disk(detail::concat("size=16m,nr_inodes=", files), [](const std::string& path) {
      FailingSave failing{state_of(1'000, 1'000), {}, "No space left on device"};
      failing.make_room = [&] {
        ASSERT_EQ(mount(nullptr, path.c_str(), nullptr, MS_REMOUNT, "size=16m,nr_inodes=99"), 0);
      };
      failing.run(path + "/run");
    });
  }
}

TEST(FullDisk, AFileMayNotGrow) {
  const TemporaryFolder folder;
  for (const int limited : {0, 1}) {
    FailingSave failing{state_of(3 * kMiB, 3 * kMiB), {}, "File too large"};
    failing.before = [&](int rank) {
      if (rank == limited) {
        const rlimit limit{2 * kMiB, 2 * kMiB};
        ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
      }
    };
    failing.run(folder.path() + "/" + std::to_string(limited));
  }
}

TEST(FullDisk, WhatIsReadOnlyCanBeReadAndIsNotWritten) {
  on_small_disk("size=4m", [](const std::string& path) {
    const auto tensors = state_of(1'000, 1'000);
    testing::save_split(path + "/run", 1, tensors, whole_split, 2);
    ASSERT_EQ(mount(nullptr, path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    EXPECT_EQ(load_split(CheckpointFolder(path + "/run").path_of(1), tensors, even_split, 2),
              std::vector<std::string>());
    fork_world(2, [&](World& world) {
      const std::string text = message_of<ConfigError>(
          [&] { const CheckpointWriter writer(path + "/run", borrowed(world)); });
      EXPECT_TRUE(has(text, "Read-only file system") && has(text, path + "/run")) << text;
    });
  });
}

// As a user to whom nothing belongs; the tests often run as root, who may do anything.
void as_nobody(const std::function<void()>& body) {
  testing::fork_ranks(1, [&](int) {
    constexpr uid_t kNobody = 65534;
    if (getuid() == 0) {
      ASSERT_EQ(setgid(kNobody), 0);
      ASSERT_EQ(setuid(kNobody), 0);
    }
    body();
  });
}

TEST(NoPermission, IsNamedByTheWriter) {
  const TemporaryFolder folder;
  const std::string closed = folder.path() + "/closed";
  fs::create_directories(closed);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0555), 0);
  for (const std::string& place : {closed, closed + "/checkpoints"}) {
    as_nobody([&] {
      const auto world = init(testing::options_for(testing::unique_job(), 0, 1));
      const std::string text =
          message_of<ConfigError>([&] { const CheckpointWriter writer(place, world); });
      EXPECT_TRUE(has(text, "Permission denied") && has(text, place)) << text;
    });
  }
}

TEST(NoPermission, IsNamedByTheReader) {
  const TemporaryFolder folder;
  const auto tensors = state_of(1'000, 1'000);
  testing::save_split(folder.path(), 1, tensors, whole_split, 2);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(1);
  for (const char* file : {"rank-00001.safetensors", "manifest.json"}) {
    const std::string path = checkpoint + "/" + file;
    ASSERT_EQ(chmod(path.c_str(), 0), 0);
    as_nobody([&] {
      const std::string text =
          message_of<CheckpointError>([&] { const CheckpointReader reader(checkpoint); });
      EXPECT_TRUE(has(text, "Permission denied") && has(text, path)) << text;
      const auto wrong = verify_checkpoint(checkpoint);
      ASSERT_EQ(wrong.size(), 1U);
      EXPECT_TRUE(has(wrong[0], "Permission denied") && has(wrong[0], path)) << wrong[0];
    });
    ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  }
  // A folder that cannot be looked into is not an empty one.
  ASSERT_EQ(chmod(folder.path().c_str(), 0), 0);
  as_nobody([&] {
    const std::string text =
        message_of<CheckpointError>([&] { CheckpointFolder(folder.path()).newest(); });
    EXPECT_TRUE(has(text, "Permission denied") && has(text, folder.path())) << text;
  });
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
}

TEST(BadFolder, AFileInItsPlaceIsNamedOnEveryRank) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  write_text(path, "text");
  for (const std::string& place : {path, path + "/below"}) {
    fork_world(2, [&](World& world) {
      const std::string text =
          message_of<ConfigError>([&] { const CheckpointWriter writer(place, borrowed(world)); });
      EXPECT_TRUE(has(text, place) && has(text, "Not a directory")) << text;
    });
  }
}

// Somebody clears the folder away under a running job.
TEST(BadFolder, OneThatVanishesIsNamedOnEveryRank) {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/run";
  const auto tensors = state_of(1'000, 1'000);
  fork_world(2, [&](World& world) {
    alarm(60);
    const SplitState state(tensors, whole_split, 2, world.rank());
    CheckpointWriter writer(place, borrowed(world));
    writer.save(1, state.view(), {});
    writer.finish();
    if (world.rank() == 0) {
      fs::remove_all(place);
    }
    const std::string text = message_of<CheckpointError>([&] { writer.save(2, state.view(), {}); });
    EXPECT_TRUE(has(text, place) && has(text, "No such file or directory")) << text;
  });
}

TEST(BadFolder, ALatestThatCannotBeWrittenIsNamed) {
  const TemporaryFolder folder;
  const auto tensors = state_of(1'000, 1'000);
  fs::create_directories(folder.path() + "/latest/somebody's");
  fork_world(2, [&](World& world) {
    alarm(60);
    const SplitState state(tensors, whole_split, 2, world.rank());
    CheckpointWriter writer(folder.path(), borrowed(world));
    writer.save(1, state.view(), {});
    const std::string text = message_of<CheckpointError>([&] { writer.finish(); });
    EXPECT_TRUE(has(text, folder.path() + "/latest")) << text;
  });
  EXPECT_EQ(CheckpointFolder(folder.path()).newest(), 1) << "it is complete all the same";
  EXPECT_EQ(CheckpointFolder(folder.path()).unfinished(), std::vector<std::string>());
}

}  // namespace
}  // namespace trireme
