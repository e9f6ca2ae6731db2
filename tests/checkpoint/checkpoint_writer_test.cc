// Saving in the background: what waits for what, how much memory it takes, who learns of failures.

#include "trireme/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/assembly.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

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

constexpr std::size_t kMiB = 1 << 20;

std::vector<MadeTensor> small_state() {
  return {random_tensor(kWeightKind, "a", Dtype::kFloat32, {1009}),
          random_tensor(kWeightKind, "b", Dtype::kFloat64, {3, 5}),
          random_tensor(kWeightKind, "c", Dtype::kUint8, {17})};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The most memory this process has had since reset_peak(), in bytes; 0 where the system does not
// say.
std::size_t peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == "VmHWM:") {
      std::size_t kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return 0;
}
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

TEST(Snapshot, TakesNoMoreMemoryThanItsLimit) {
  struct Case {
    std::size_t total;
    std::size_t limit;
    std::size_t most;
  };
  for (const Case& each : {Case{100 * kMiB, 0, 100 * kMiB},
                           Case{100 * kMiB, 10 * kMiB, 10 * kMiB},
                           Case{100 * kMiB, 8 * kMiB, 8 * kMiB},
                           Case{100 * kMiB, 7 * kMiB, 7 * kMiB},
                           Case{100 * kMiB, 1, 2 * kMiB},  // the least that works
                           Case{3, 50 * kMiB, 4 * kMiB},
                           Case{3, 0, 4 * kMiB}}) {
    detail::Snapshot snapshot;
    snapshot.begin(each.total, each.limit, kMiB);
    EXPECT_LE(snapshot.memory_bytes(), each.most) << each.total << " within " << each.limit;
    EXPECT_EQ(snapshot.piece_bytes() % kMiB, 0U);
  }
}

TEST(Snapshot, FillingWaitsForEmptying) {
  detail::Snapshot snapshot;
  snapshot.begin(10 * kMiB, 2 * kMiB, kMiB);
  double waited = 0;
  snapshot.put_full({snapshot.take_empty(waited), kMiB});
  snapshot.put_full({snapshot.take_empty(waited), kMiB});
  EXPECT_EQ(waited, 0.0) << "two pieces are there at once";
  std::atomic<bool> emptied{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto piece = snapshot.take_full();
    emptied = true;
    snapshot.put_empty(piece->data);
  });
  snapshot.take_empty(waited);
  EXPECT_TRUE(emptied);
  EXPECT_GT(waited, 0.0);
  other.join();
}

// A shard of 48 MiB through 2 MiB of memory.
TEST(CheckpointWriter, ASmallSnapshotBoundsTheMemory) {
  const TemporaryFolder folder;
  constexpr std::int64_t kNumel = 24 << 20;
  fork_world(2, [&](World& world) {
    std::vector<float> values(static_cast<std::size_t>(kNumel / 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2 + static_cast<std::size_t>(world.rank()));
    }
    StateView state;
    state.tensors.push_back({kWeightKind, "a", Dtype::kFloat32, {kNumel}, {}});
    state.slices.push_back(
        {0, even_range(kNumel, 2, world.rank()), reinterpret_cast<std::byte*>(values.data())});
    std::vector<std::string> said;
    CheckpointOptions options;
    options.snapshot_bytes = 2 * kMiB;
    options.say = [&](const std::string& text) { said.push_back(text); };
    CheckpointWriter writer(folder.path(), borrowed(world), options);
    // That the system counts, and begins anew: otherwise nothing would be seen of what is taken.
    { const std::vector<char> large(64 * kMiB, 'x'); }
    const std::size_t highest = peak_memory();
    reset_peak();
    const std::size_t before = peak_memory();
    ASSERT_GT(before, values.size() * sizeof(float));
    ASSERT_GT(highest, before + 32 * kMiB);
    const SaveReport report = writer.save(1, state, {});
    values.assign(values.size(), -1.0F);  // training goes on
    writer.finish();
    EXPECT_LT(peak_memory() - before, 16 * kMiB);
    EXPECT_GT(report.rank_bytes, values.size() * sizeof(float));
    if (world.rank() == 0) {
      EXPECT_EQ(report.disk_seconds > 0, !said.empty());
      for (const std::string& text : said) {
        EXPECT_TRUE(has(text, "step 1") && has(text, "2097152 bytes")) << text;
      }
    }
  });
  const CheckpointReader reader(CheckpointFolder(folder.path()).path_of(1));
  std::vector<float> found(static_cast<std::size_t>(kNumel));
  reader.read(reader.manifest().tensors.at(0), reinterpret_cast<std::byte*>(found.data()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t half = found.size() / 2;
    ASSERT_EQ(found[i], static_cast<float>(i % half * 2 + i / half)) << i;
  }
}

// The state is free to change when save() returns, whatever the disk has done by then.
TEST(CheckpointWriter, WhatIsSavedIsTheStateAtTheCall) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "a", Dtype::kFloat32, {2'000'003})};
  testing::spawn_world(2, [&](World& world) {
    CheckpointWriter writer(folder.path(), borrowed(world));
    for (int step = 1; step <= 3; ++step) {
      const SplitState state(tensors, even_split, 2, world.rank());
      writer.save(step, state.view(), {});
      for (const StateSlice& slice : state.view().slices) {
        std::memset(slice.data, step, static_cast<std::size_t>(slice.range.size()) * 4);
      }
    }
    writer.finish();
  });
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(
        load_split(CheckpointFolder(folder.path()).path_of(step), tensors, even_split, 1).size(),
        0U);
  }
}

TEST(CheckpointWriter, AnUnfinishedSaveIsWaitedForAndSaid) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  std::atomic<bool> next{false};
  testing::spawn_world(2, [&](World& world) {
    const SplitState state(tensors, even_split, 2, world.rank());
    std::vector<std::string> said;
    CheckpointOptions options;
    options.say = [&](const std::string& text) { said.push_back(text); };
    options.before_publish = [&] {
      while (!next) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    };
    CheckpointWriter writer(folder.path(), borrowed(world), options);
    writer.save(1, state.view(), {});
    EXPECT_TRUE(CheckpointFolder(folder.path()).steps().empty());
    if (world.rank() == 0) {
      next = true;
    }
    const SaveReport report = writer.save(2, state.view(), {});
    EXPECT_TRUE(CheckpointFolder(folder.path()).contains(1));
    if (world.rank() == 0) {
      EXPECT_GT(report.disk_seconds, 0.0);
      ASSERT_EQ(said.size(), 1U);
      EXPECT_TRUE(has(said[0], "checkpoint of step 2") && has(said[0], "that of step 1"))
          << said[0];
    } else {
      EXPECT_TRUE(said.empty());
    }
    writer.finish();
  });
  EXPECT_EQ(CheckpointFolder(folder.path()).steps(), (std::vector<std::int64_t>{1, 2}));
}

TEST(CheckpointWriter, WithoutFinishTheLastSaveIsCompletedAllTheSame) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  fork_world(3, [&](World& world) {
    const SplitState state(tensors, even_split, 3, world.rank());
    CheckpointWriter writer(folder.path(), borrowed(world));
    writer.save(1, state.view(), {});
  });
  EXPECT_EQ(load_split(CheckpointFolder(folder.path()).path_of(1), tensors, even_split, 2),
            std::vector<std::string>());
  EXPECT_TRUE(CheckpointFolder(folder.path()).unfinished().empty());
}

TEST(CheckpointWriter, AJobThatEndsWithAnExceptionLeavesNothingHalf) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  testing::spawn_world(2, [&](World& world) {
    const SplitState state(tensors, even_split, 2, world.rank());
    try {
      CheckpointWriter writer(folder.path(), borrowed(world));
      writer.save(1, state.view(), {});
      writer.finish();
      writer.save(2, state.view(), {});
      throw std::runtime_error("the training has failed");
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the training has failed");
    }
  });
  const CheckpointFolder checkpoints(folder.path());
  for (const std::int64_t step : checkpoints.steps()) {  // the second may have been fast enough
    EXPECT_EQ(load_split(checkpoints.path_of(step), tensors, even_split, 1),
              std::vector<std::string>());
  }
  EXPECT_TRUE(checkpoints.contains(1));
}

// Rank 0's thread fails: it learns of it by check(), all by the next call.
TEST(CheckpointWriter, AFailureIsThrownOnEveryRank) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  fork_world(3, [&](World& world) {
    const SplitState state(tensors, even_split, 3, world.rank());
    bool fails = false;
    CheckpointOptions options;
    options.before_publish = [&] {
      if (fails) {
        throw CheckpointError("metrics.jsonl", 12, "\"metrics.jsonl\", byte 12: a made failure");
      }
    };
    CheckpointWriter writer(folder.path(), borrowed(world), options);
    writer.save(1, state.view(), {});
    writer.finish();
    fails = true;
    EXPECT_NO_THROW(writer.check());
    writer.save(2, state.view(), {});
    if (world.rank() == 0) {
      while (writer.failure().empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      try {
        writer.check();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.file(), "metrics.jsonl");
        EXPECT_EQ(error.offset(), 12);
        EXPECT_TRUE(has(error.what(), "a made failure")) << error.what();
      }
    }
    for (int i = 0; i < 2; ++i) {  // as often as it is asked for
      const std::string text = message_of<CheckpointError>([&] { writer.finish(); });
      EXPECT_TRUE(has(text, "a made failure")) << text;
      EXPECT_EQ(has(text, "rank 0"), world.rank() != 0) << text;
    }
    EXPECT_TRUE(has(message_of<CheckpointError>([&] { writer.save(3, state.view(), {}); }),
                    "a made failure"));
    EXPECT_TRUE(has(message_of<CheckpointError>([&] { writer.check(); }), "a made failure"));
  });
  const CheckpointFolder checkpoints(folder.path());
  EXPECT_EQ(checkpoints.steps(), std::vector<std::int64_t>{1});
  EXPECT_TRUE(checkpoints.unfinished().empty());
}

// Whoever has asked for it says it; else the log does, at the end.
TEST(CheckpointWriter, AFailureIsSaidOnce) {
  const auto tensors = small_state();
  for (const bool asks : {false, true}) {
    const TemporaryFolder folder;
    ::testing::internal::CaptureStderr();
    testing::spawn_world(1, [&](World& world) {
      const SplitState state(tensors, even_split, 1, world.rank());
      CheckpointOptions options;
      options.before_publish = [] { throw CheckpointError("some", 0, "a made failure"); };
      CheckpointWriter writer(folder.path(), borrowed(world), options);
      writer.save(1, state.view(), {});
      while (asks && writer.failure().empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    EXPECT_EQ(has(::testing::internal::GetCapturedStderr(), "a made failure"), !asks);
  }
}

// Rank 1 is killed while the others wait for it to finish its part.
TEST(CheckpointWriter, ARankThatIsKilledWhileSavingEndsTheWait) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "a", Dtype::kFloat32, {100}),
      random_tensor(kWeightKind, "b", Dtype::kUint8, {64 << 20})};
  const std::string job = testing::unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(testing::fork_rank(rank, [&](int self) {
      alarm(60);  // a hang is a failure
      const auto world = init(testing::options_for(job, self, 3));
      const SplitState state(tensors, whole_split, 3, self);
      CheckpointWriter writer(folder.path(), world);
      writer.save(1, state.view(), {});
      if (self == 1) {
        raise(SIGKILL);
      }
      const std::string text = message_of<CommError>([&] { writer.finish(); });
      EXPECT_TRUE(has(text, "rank 1")) << text;
    }));
  }
  EXPECT_EQ(testing::wait_for(pids[0]), 0);
  EXPECT_TRUE(WIFSIGNALED(testing::wait_for(pids[1])));
  EXPECT_EQ(testing::wait_for(pids[2]), 0);
  EXPECT_TRUE(CheckpointFolder(folder.path()).steps().empty());
}

// A disk that is slower than the communicator's patience is no failure.
TEST(CheckpointWriter, ASlowDiskOutlastsTheDeadlineOfCollectives) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  fork_world(
      2,
      [&](World& world) {
        const SplitState state(tensors, even_split, 2, world.rank());
        CheckpointOptions options;
        options.before_publish = [] { std::this_thread::sleep_for(std::chrono::seconds(6)); };
        CheckpointWriter writer(folder.path(), borrowed(world), options);
        writer.save(1, state.view(), {});
        writer.finish();
      },
      [](InitOptions& options) { options.timeout = std::chrono::seconds(4); });
  EXPECT_TRUE(CheckpointFolder(folder.path()).contains(1));
}

// Two machines, each with a folder of its own under that name.
TEST(CheckpointWriter, AFolderThatIsNotSharedIsNamedAtTheStart) {
  const TemporaryFolder first;
  const TemporaryFolder second;
  fork_world(3, [&](World& world) {
    const std::string& folder = world.rank() == 1 ? second.path() : first.path();
    const std::string text =
        message_of<ConfigError>([&] { const CheckpointWriter writer(folder, borrowed(world)); });
    EXPECT_TRUE(has(text, "rank 1 does not see what rank 0 writes to \"" + second.path() + "\""))
        << text;
    EXPECT_TRUE(has(text, "share")) << text;
  });
  EXPECT_TRUE(CheckpointFolder(first.path()).unfinished().empty());
  fork_world(3, [&](World& world) {
    const CheckpointWriter writer(first.path(), borrowed(world));
    world.barrier().wait();
    EXPECT_TRUE(CheckpointFolder(first.path()).unfinished().empty());
  });
}

#ifdef __GLIBC__
// No address space has room for such a stack: the system refuses threads, as it does where a user
// has too many.
void allow_threads(bool allowed) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, allowed ? std::size_t{8} << 20 : std::size_t{1} << 50);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
}

TEST(CheckpointWriter, AThreadThatCannotBeStartedIsAnErrorOnEveryRank) {
  const auto tensors = small_state();
  for (const int without : {0, 1}) {
    const TemporaryFolder folder;
    fork_world(2, [&](World& world) {
      alarm(60);  // a hang is a failure
      const SplitState state(tensors, even_split, 2, world.rank());
      CheckpointWriter writer(folder.path(), borrowed(world));
      allow_threads(world.rank() != without);
      const std::string text = message_of<CheckpointError>([&] {
        writer.save(1, state.view(), {});
        writer.finish();
      });
      allow_threads(true);
      EXPECT_TRUE(has(text, "could not be started")) << text;
      EXPECT_EQ(has(text, detail::concat("rank ", without, ": ")), world.rank() != without) << text;
    });
    EXPECT_TRUE(CheckpointFolder(folder.path()).steps().empty());
    EXPECT_TRUE(CheckpointFolder(folder.path()).unfinished().empty());
  }
}
#endif

// The list of tensors is one for all ranks: a mix-up must not become a checkpoint.
TEST(CheckpointWriter, RanksThatSaveDifferentThingsAreRefused) {
  const TemporaryFolder folder;
  const auto tensors = small_state();
  std::vector<MadeTensor> swapped = tensors;
  std::swap(swapped[0], swapped[1]);
  fork_world(3, [&](World& world) {
    const auto& mine = world.rank() == 2 ? swapped : tensors;
    const SplitState state(mine, whole_split, 3, world.rank());
    const SplitState same(tensors, whole_split, 3, world.rank());
    CheckpointWriter writer(folder.path(), borrowed(world));
    const std::string text = message_of<ConfigError>([&] { writer.save(1, state.view(), {}); });
    EXPECT_TRUE(has(text, "rank 2")) << text;
    const std::string other =
        message_of<ConfigError>([&] { writer.save(world.rank() == 1 ? 7 : 8, same.view(), {}); });
    EXPECT_TRUE(has(other, "step 7") && has(other, "step 8")) << other;
    writer.save(9, same.view(), {});
    writer.finish();
  });
  EXPECT_EQ(CheckpointFolder(folder.path()).steps(), std::vector<std::int64_t>{9});
}

// Rank 0 renames the folder the moment it sees the last rank's word, which may be before that rank
// has returned from writing it.
TEST(Assembly, TheFolderMayGetItsNameWhileTheLastRankStillDelivers) {
  const TemporaryFolder folder;
  fork_world(2, [&](World& world) {
    for (int turn = 0; turn < 2000; ++turn) {
      const std::string unnamed = folder.path() + "/.new-" + std::to_string(turn);
      const std::string part = unnamed + "/rank-00001.part";
      if (world.rank() == 0) {
        std::filesystem::create_directory(unnamed);
      }
      world.barrier().wait();
      if (world.rank() == 0) {
        const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (access(part.c_str(), F_OK) != 0) {
          ASSERT_LT(std::chrono::steady_clock::now(), late) << "nothing came in turn " << turn;
        }
        std::filesystem::rename(unnamed, folder.path() + "/step-" + std::to_string(turn));
      } else {
        detail::Assembly assembly(CheckpointFolder(folder.path()), unnamed, world, {});
        EXPECT_NO_THROW(assembly.deliver({"rank-00001.safetensors", 0, {}})) << "turn " << turn;
      }
    }
  });
}

// Elements that nobody has, or that two ranks have: found before the checkpoint appears.
TEST(CheckpointWriter, AStateThatIsNotCoveredOnceIsRefused) {
  const auto tensors = small_state();
  const testing::Split twice = [](std::size_t, std::int64_t numel, int, int) {
    return std::vector<Range>{{0, numel}};
  };
  const testing::Split hole = [](std::size_t, std::int64_t numel, int ranks, int rank) {
    const Range range = even_range(numel, ranks, rank);
    return std::vector<Range>{{range.begin, range.end - (rank == 1 ? 1 : 0)}};
  };
  for (const auto& split : {twice, hole}) {
    const TemporaryFolder folder;
    fork_world(2, [&](World& world) {
      const SplitState state(tensors, split, 2, world.rank());
      CheckpointWriter writer(folder.path(), borrowed(world));
      writer.save(1, state.view(), {});
      EXPECT_TRUE(has(message_of<CheckpointError>([&] { writer.finish(); }), "weight a"));
    });
    EXPECT_TRUE(CheckpointFolder(folder.path()).steps().empty());
    EXPECT_TRUE(CheckpointFolder(folder.path()).unfinished().empty());
  }
}

}  // namespace
}  // namespace trireme
