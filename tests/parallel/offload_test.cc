// States that are not beside the parameters: in a file, window by window (DiskStates), or in the
// host's memory, between which and a device whose work is late gradients and parameters travel.
// The parity tests compare such engines with plain loops.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "parallel/engine/host_copies.h"
#include "parallel/engine_worlds.h"
#include "parallel/memory/disk_states.h"
#include "parallel/memory/optimizer_memory.h"
#include "support/late_device.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/shared_state.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail::offload_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using engine_worlds::in_world;
using testing::message_of;
using testing::TemporaryFolder;
using torch::Tensor;

// This process's descriptor of a file of states, which has no name any more.
int states_descriptor(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(folder + "/trireme-states")) {
      return std::stoi(entry.path().filename());
    }
  }
  ADD_FAILURE() << "no file of states in " << folder;
  return -1;
}

// --- DiskStates

constexpr std::size_t kElement = sizeof(float);
// Of several windows, of one, of one element, of none, and without arrays.
const std::vector<DiskStates::Arrays> kUnits = {{2'500'001, kElement, 2},
                                                {0, kElement, 3},
                                                {1, kElement, 3},
                                                {4097, 2 * kElement, 1},
                                                {5, kElement, 0}};

std::size_t row_bytes(const std::vector<DiskStates::Arrays>& units) {
  std::size_t bytes = 0;
  for (const auto& unit : units) {
    bytes += static_cast<std::size_t>(unit.numel) * unit.element_bytes * unit.count;
  }
  return bytes;
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = static_cast<std::byte>(seed >> 24);
  }
  return values;
}

std::vector<std::byte> all_of(DiskStates& states) {
  std::vector<std::byte> found(row_bytes(kUnits));
  states.read(0, found.data(), found.size());
  return found;
}

struct OnDisk {
  TemporaryFolder folder;
  std::shared_ptr<MemoryLedger> ledger = MemoryLedger::create();
  DiskStates states{folder.path(), 3, kUnits, *ledger};
};

TEST(DiskStates, IsOneRowOfBytesThatBeginsAsZeros) {
  OnDisk disk;
  std::vector<std::byte> expected(row_bytes(kUnits));
  EXPECT_TRUE(all_of(disk.states) == expected);
  EXPECT_TRUE(std::filesystem::is_empty(disk.folder.path())) << "its name is gone at once";
  // Anywhere, of any length, across arrays, windows and units.
  unsigned seed = 7;
  for (int i = 0; i < 40; ++i) {
    seed = seed * 1664525U + 1013904223U;
    const std::size_t begin = seed % expected.size();
    const std::size_t length =
        std::min<std::size_t>(expected.size() - begin, i % 4 == 0 ? 6'000'000 : 1 + seed % 9000);
    const std::vector<std::byte> values = pattern(length, seed);
    std::copy(values.begin(), values.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin));
    disk.states.write(begin, values.data(), length);
  }
  EXPECT_TRUE(all_of(disk.states) == expected);
  EXPECT_EQ(disk.states.place(0, 1, 5), (2'500'001U + 5) * kElement);
  EXPECT_EQ(disk.states.place(2, 2, 0), (2 * 2'500'001U + 2) * kElement);
  EXPECT_EQ(disk.ledger->use().of(MemoryCategory::kDisk),
            static_cast<std::int64_t>(disk.states.size_bytes()));
  EXPECT_GE(disk.states.size_bytes(), expected.size());
}

// Windows 0 to 2 are the large unit's, 3 and 4 the small ones', 5 has no arrays.
TEST(DiskStates, AnUpdateTakesTheWindowsThatItAsksFor) {
  OnDisk disk;
  std::vector<std::byte> expected = pattern(row_bytes(kUnits), 1);
  disk.states.write(0, expected.data(), expected.size());
  const std::int64_t numel = (2'500'001 + 2) / 3;
  for (const std::vector<std::size_t>& order :
       {std::vector<std::size_t>{0, 1, 2, 3, 4, 5}, {}, {1}, {0, 2}, {0, 1, 2, 4}, {2, 3, 5}}) {
    disk.states.begin(order);
    for (const std::size_t window : order) {
      disk.states.next();
      if (window < 3) {  // both arrays
        const auto first = static_cast<std::int64_t>(window) * numel;
        const auto count = static_cast<std::size_t>(std::min(numel, 2'500'001 - first));
        for (std::size_t array = 0; array < 2; ++array) {
          std::byte* const there = disk.states.array(array);
          std::byte* const wanted = expected.data() + disk.states.place(0, array, first);
          ASSERT_EQ(std::memcmp(there, wanted, count * kElement), 0) << window << ' ' << array;
          for (std::size_t i = 0; i < count * kElement; i += 3) {
            there[i] = wanted[i] = static_cast<std::byte>(i + array + window);
          }
        }
      } else if (window == 3) {
        std::byte* const wanted = expected.data() + disk.states.place(2, 2, 0);
        ASSERT_EQ(std::memcmp(disk.states.array(2), wanted, kElement), 0);
        wanted[1] = disk.states.array(2)[1] = std::byte{77};
      }
      disk.states.put_back();
    }
    disk.states.finish();
    ASSERT_TRUE(all_of(disk.states) == expected);
  }
  EXPECT_GT(disk.states.read_bytes(), 0);
  EXPECT_GT(disk.states.written_bytes(), 0);
}

TEST(DiskStates, FindsWhatADiskHasLostOrDamagedAndNamesThePlace) {
  const auto refusal = [](const std::function<void(int)>& harm, bool in_update) {
    OnDisk disk;
    const std::vector<std::byte> values = pattern(row_bytes(kUnits), 3);
    disk.states.write(0, values.data(), values.size());
    disk.states.flush();
    harm(states_descriptor(disk.folder.path()));
    return message_of<DataError>([&] {
      if (!in_update) {
        all_of(disk.states);
        return;
      }
      disk.states.begin({0, 1, 2});
      for (int window = 0; window < 3; ++window) {
        disk.states.next();
        disk.states.put_back();
      }
      disk.states.finish();
    });
  };
  const auto flip = [](int fd) {
    alignas(4096) std::byte block[4096];
    ASSERT_EQ(pread(fd, block, sizeof(block), 8 << 20), 4096);
    block[17] ^= std::byte{4};
    ASSERT_EQ(pwrite(fd, block, sizeof(block), 8 << 20), 4096);
  };
  const auto truncate = [](int fd) { ASSERT_EQ(ftruncate(fd, 4 << 20), 0); };
  for (const bool in_update : {false, true}) {
    const std::string damaged = refusal(flip, in_update);
    EXPECT_TRUE(contains(damaged, "trireme-states-of-rank-3")) << damaged;
    EXPECT_TRUE(contains(damaged, "not what was written")) << damaged;
    // The first array of the second window.
    EXPECT_TRUE(contains(damaged, "bytes 6668288 to 10001624")) << damaged;
    const std::string lost = refusal(truncate, in_update);
    // An update reads all arrays of a window; between updates, they come one after another.
    EXPECT_TRUE(contains(lost, in_update ? "byte 4194304" : "byte 6668288")) << lost;
    EXPECT_TRUE(contains(lost, "the file ends there")) << lost;
  }
}

// A disk that refuses to be written is noticed before the update is over.
TEST(DiskStates, FailsWhereItsFileCannotBeWritten) {
  OnDisk disk;
  const int fd = states_descriptor(disk.folder.path());
  const int other = open("/dev/full", O_RDWR | O_CLOEXEC);
  ASSERT_GE(other, 0);
  ASSERT_EQ(dup2(other, fd), fd);
  close(other);
  const std::string message = message_of<DataError>([&] {
    disk.states.begin({2});
    disk.states.next();
    disk.states.put_back();
    disk.states.finish();
  });
  EXPECT_TRUE(contains(message, "could not be written: No space left")) << message;
}

TEST(StateFile, IsRefusedWhereItsFolderIsNoneOrHasNoRoom) {
  const TemporaryFolder folder;
  const std::string none =
      message_of<ConfigError>([&] { StateFile(folder.path() + "/none", 5, 4096); });
  EXPECT_TRUE(contains(none, "/none")) << none;
  EXPECT_TRUE(contains(none, "rank 5: No such file")) << none;
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 50;
  const std::string full = message_of<ConfigError>([&] { StateFile(folder.path(), 5, kMuch); });
  EXPECT_TRUE(contains(full, std::to_string(kMuch) + " bytes")) << full;
  EXPECT_TRUE(contains(full, "free") || contains(full, "too large")) << full;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  testing::fork_ranks(1, [&](int) {
    const struct rlimit limit { 1 << 20, 1 << 20 };
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::string small =
        message_of<ConfigError>([&] { StateFile(folder.path(), 0, 2 << 20); });
    EXPECT_TRUE(contains(small, "ulimit -f")) << small;
  });
}

// --- engines

// More elements than a window has.
struct Large : nn::Module {
  nn::Linear wide{nullptr}, narrow{nullptr};
  Large() {
    torch::manual_seed(4);
    wide = register_module("wide", nn::Linear(1061, 1033));
    narrow = register_module("narrow", nn::Linear(1033, 3));
  }
  Tensor forward(const Tensor& x) {
    const Tensor in = x.to(wide->weight.scalar_type());
    return narrow->forward(torch::tanh(wide->forward(in))).to(torch::kFloat);
  }
};

Tensor batch(std::int64_t step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + micro_batch));
  return torch::randn({2, 1061}, generator, torch::kFloat);
}

void train(Engine<Large>& engine, std::int64_t from, std::int64_t to) {
  for (std::int64_t step = from; step < to; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(engine_worlds::loss_of(engine.forward(batch(step, engine.micro_batch(k)))));
      engine.step();
    }
  }
}

EngineOptions large_options(int zero, Precision precision) {
  EngineOptions options;
  options.zero = zero;
  options.micro_batches = 3;
  options.clip_norm = 0.4;
  options.ema_decay = 0.8;
  options.precision = precision;
  return options;
}

TEST(OffloadedEngine, HasTheBitsOfOneInMemoryInSeveralWindowsAndResumesAnywhere) {
  const TemporaryFolder folder;
  for (const int size : {1, 2, 3}) {
    for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
      testing::SharedState middle, end, again;
      in_world(size, [&](std::shared_ptr<World> world) {
        EngineOptions options = large_options(size - 1, precision);
        {
          Engine engine(std::make_shared<Large>(), AdamW({.lr = 0.01}), options, world);
          train(engine, 0, 2);
          middle.save(engine);
          train(engine, 2, 4);
          end.save(engine);
        }
        options.offload = Offload::disk(folder.path());
        Engine engine(std::make_shared<Large>(), AdamW({.lr = 0.01}), options, world);
        train(engine, 0, 1);  // is overwritten
        middle.load(engine);
        train(engine, 2, 4);
        again.save(engine);
        EXPECT_GT(engine.offload().fetched_bytes, 0);
        EXPECT_GT(engine.offload().sent_bytes, 0);
      });
      EXPECT_TRUE(end == again) << size << " ranks, precision " << static_cast<int>(precision);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// What is written in gathered() reaches masters on a disk.
TEST(OffloadedEngine, FollowsWhatIsWrittenFromOutside) {
  const TemporaryFolder folder;
  testing::SharedState expected, found;
  in_world(2, [&](std::shared_ptr<World> world) {
    for (const bool on_disk : {false, true}) {
      EngineOptions options = large_options(1, Precision::kBFloat16);
      options.offload = on_disk ? Offload::disk(folder.path()) : Offload();
      Engine engine(std::make_shared<Large>(), Lion({.lr = 0.001}), options, world);
      train(engine, 0, 1);
      {
        Gathered scope = engine.gathered({"wide.weight", "narrow.bias"});
        const torch::NoGradGuard no_grad;
        engine.model().wide->weight.slice(0, 0, 700).fill_(0.125);
        engine.model().narrow->bias.add_(1);
        scope.close();
      }
      train(engine, 1, 2);
      (on_disk ? found : expected).save(engine);
      const Tensor average = engine.average("wide.weight");
      EXPECT_EQ(average.sizes(), (at::IntArrayRef{1033, 1061}));
    }
  });
  EXPECT_TRUE(expected == found);
}

TEST(OffloadedEngine, SaysWhereEveryByteIs) {
  const TemporaryFolder folder;
  in_world(2, [&](std::shared_ptr<World> world) {
    constexpr std::int64_t kNumel = 1061 * 1033 + 1033 + 1033 * 3 + 3;
    EngineOptions options = large_options(2, Precision::kBFloat16);
    options.offload = Offload::disk(folder.path());
    Engine engine(std::make_shared<Large>(), AdamW({.lr = 0.01}), options, world);
    const MemoryReport report = engine.memory_report();
    const MemoryUse& mine = report.ranks[static_cast<std::size_t>(world->rank())];
    EXPECT_EQ(mine.of(MemoryCategory::kOptimizer), 0);
    EXPECT_EQ(mine.of(MemoryCategory::kAverages), 0);
    EXPECT_EQ(mine.of(MemoryCategory::kHost), 0) << "that is the device's, here";
    // Masters, two moments, averages: 16 bytes for each of half of the elements.
    EXPECT_NEAR(static_cast<double>(mine.of(MemoryCategory::kDisk)), 8.0 * kNumel, 40'000);
    // bfloat16 parameters on each, and half of the float32 sums.
    EXPECT_NEAR(static_cast<double>(report.predicted_bytes), (2 + 2) * kNumel, 8);
    // The rest is windows, of up to a million elements in four arrays, three at a time, and
    // buckets.
    EXPECT_LT(mine.total(), 48 << 20) << "what is on a disk takes no memory";
    EXPECT_TRUE(contains(report.to_string(), "disk"));
  });
}

TEST(OffloadedEngine, ThatLosesItsDiskSaysSoAndIsNotTrainedFurther) {
  const TemporaryFolder folder;
  in_world(1, [&](std::shared_ptr<World> world) {
    EngineOptions options = large_options(0, Precision::kAsModel);
    options.micro_batches = 1;
    options.offload = Offload::disk(folder.path());
    Engine engine(std::make_shared<Large>(), AdamW({.lr = 0.01}), options, world);
    train(engine, 0, 1);
    ASSERT_EQ(ftruncate(states_descriptor(folder.path()), 4096), 0);
    const std::string lost = message_of<DataError>([&] { train(engine, 1, 2); });
    EXPECT_TRUE(contains(lost, "trireme-states-of-rank-0")) << lost;
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { train(engine, 2, 3); }), "half updated"));
    engine.unwrap();
  });
}

// What the disk of one rank has lost, all hear of; together they can still leave.
TEST(OffloadedEngine, ThatLosesTheDiskOfOneRankEndsOnAll) {
  using Call = std::function<void(Engine<Large>&)>;
  const std::pair<const char*, Call> calls[] = {
      {"an update", [](Engine<Large>& engine) { train(engine, 1, 2); }},
      {"gathered()",
       [](Engine<Large>& engine) {
         Gathered scope = engine.gathered({"wide.weight"});
         const torch::NoGradGuard no_grad;
         engine.model().wide->weight.fill_(0.125);
         scope.close();
       }},
      {"average()", [](Engine<Large>& engine) { engine.average("wide.weight"); }},
      {"restore()",
       [](Engine<Large>& engine) { engine.restore([](const StateView&) {}, engine.progress()); }}};
  const TemporaryFolder folder;
  for (const auto& [name, call] : calls) {
    for (const int zero : {1, 3}) {
      SCOPED_TRACE(std::string(name) + " at stage " + std::to_string(zero));
      in_world(2, [&, &call = call](std::shared_ptr<World> world) {
        EngineOptions options = large_options(zero, Precision::kBFloat16);
        options.offload = Offload::disk(folder.path());
        Engine engine(std::make_shared<Large>(), AdamW({.lr = 0.01}), options, world);
        train(engine, 0, 1);
        if (world->rank() == 1) {
          ASSERT_EQ(ftruncate(states_descriptor(folder.path()), 4096), 0);
        }
        const std::string lost = message_of<DataError>([&] { call(engine); });
        EXPECT_TRUE(contains(lost, "trireme-states-of-rank-1")) << lost;
        engine.unwrap();
        world->barrier().wait();  // and can still be talked to
      });
    }
  }
}

TEST(OffloadedEngine, RefusesByNameWhatItDoesNotHave) {
  const TemporaryFolder folder;
  in_world(1, [&](std::shared_ptr<World> world) {
    const auto refusal = [&](EngineOptions options, const Optimizer& optimizer) {
      if (!options.offload.any()) {
        options.offload = Offload::disk(folder.path());
      }
      return message_of<ConfigError>(
          [&] { Engine(std::make_shared<Large>(), optimizer, options, world); });
    };
    const auto expect = [&](const std::string& message, const std::string& part) {
      EXPECT_TRUE(contains(message, "ffload")) << message;
      EXPECT_TRUE(contains(message, part)) << message;
    };
    const AdamW adamw;
    expect(refusal({}, Lamb()), "lamb looks at whole parameters (wide.weight)");
    expect(refusal({}, Adafactor()), "adafactor");
    const Selection matrices("matrices",
                             [](const ParameterInfo& p) { return p.sizes.size() == 2; });
    expect(refusal({}, ParameterGroups(adamw, {{matrices, Muon()}})), "muon");
    expect(refusal({.offload = Offload::host()}, adamw), "the model is on the CPU");
    expect(refusal({.offload = {Offload::To::kDisk, ""}}, adamw), "expected a folder");
    expect(refusal({.offload = {Offload::To::kHost, "/tmp"}}, adamw), "none otherwise");
    expect(refusal({.round_weights = make_compressor("int8")}, adamw), "round_weights");
    expect(refusal({.prune = {.fraction = 0.5}}, adamw), "prune");
    expect(refusal({.offload = Offload::disk(folder.path() + "/x")}, adamw), "No such file");
    struct Sparse : nn::Module {
      Sparse() { register_module("table", nn::Embedding(nn::EmbeddingOptions(9, 4).sparse(true))); }
    };
    EngineOptions options;
    options.offload = Offload::disk(folder.path());
    expect(
        message_of<ConfigError>([&] { Engine(std::make_shared<Sparse>(), adamw, options, world); }),
        "table.weight has sparse gradients");
  });
}

TEST(OffloadedEngine, IsTheSameOnAllRanks) {
  const TemporaryFolder folder;
  in_world(2, [&](std::shared_ptr<World> world) {
    EngineOptions options;
    // A folder of its own for each rank is fine; one of them without is not.
    options.offload = world->rank() == 0 ? Offload() : Offload::disk(folder.path());
    EXPECT_TRUE(contains(message_of<ConfigError>(
                             [&] { Engine(std::make_shared<Large>(), AdamW(), options, world); }),
                         "offload"));
    // Room on one rank alone: all hear of it.
    options.offload =
        Offload::disk(world->rank() == 0 ? folder.path() : folder.path() + "/missing");
    EXPECT_TRUE(contains(message_of<ConfigError>(
                             [&] { Engine(std::make_shared<Large>(), AdamW(), options, world); }),
                         "missing"));
  });
}

// --- copies between a GPU and the host

// Gradients come while something else is being done, and what is sent is there behind publish().
TEST(HostCopies, WaitForWorkThatIsLate) {
  testing::fork_world(1, [](World& world) {
    testing::WithLateDevice with;
    constexpr std::int64_t kNumel = 1000;
    ModelPlan plan;
    plan.device = testing::kLateDevice;
    plan.units.resize(1);
    plan.units[0].dtype = Dtype::kBFloat16;
    const EngineOptions options;
    const auto ledger = MemoryLedger::create();
    const PartContext context{world, world, plan, options, *ledger};
    const std::vector<StateWindow> windows(7, StateWindow{0, {0, kNumel}});
    HostCopies copies(context, windows);
    EXPECT_EQ(ledger->use().of(MemoryCategory::kHost), 3 * kNumel * (4 + 2));
    std::vector<float> sums(kNumel);
    std::vector<float> zeros(kNumel, 0);
    std::vector<std::vector<std::uint16_t>> parameters(windows.size(),
                                                       std::vector<std::uint16_t>(kNumel));
    const Span on_device(sums.data(), kNumel, Dtype::kFloat32, {}, testing::kLateDevice);
    // Sums are written by work that has not begun yet.
    std::vector<float> made(kNumel);
    std::iota(made.begin(), made.end(), 1.0F);
    with.stream().pause();
    with.stream().copy(on_device, {made.data(), kNumel, Dtype::kFloat32});
    copies.begin();
    const auto fetch = [&](std::size_t turn) {
      copies.fetch(turn, {{on_device.part(0, 400), 0}, {on_device.part(400, 600), 400}});
    };
    fetch(0);
    with.stream().resume();
    for (std::size_t turn = 0; turn < windows.size(); ++turn) {
      if (turn + 1 < windows.size()) {
        fetch(turn + 1);
      }
      copies.wait(turn);
      const ConstSpan gradient = copies.gradient(turn, 0, kNumel, Dtype::kFloat32);
      ASSERT_EQ(std::memcmp(gradient.bytes(), made.data(), kNumel * 4), 0) << turn;
      const Span low = copies.parameters(turn, 0, kNumel, Dtype::kBFloat16);
      auto* const values = reinterpret_cast<std::uint16_t*>(low.bytes());
      std::fill(values, values + kNumel, static_cast<std::uint16_t>(turn + 1));
      const Span to(parameters[turn].data(), kNumel, Dtype::kBFloat16, {}, testing::kLateDevice);
      copies.send(turn, {{to.part(0, 300), 0}, {to.part(500, 500), 500}});
    }
    copies.publish();
    device::host().wait(with.stream().record());
    for (std::size_t turn = 0; turn < windows.size(); ++turn) {
      for (std::size_t i = 0; i < kNumel; ++i) {
        const bool sent = i < 300 || i >= 500;
        ASSERT_EQ(parameters[turn][i], sent ? turn + 1 : 0) << turn << ", " << i;
      }
    }
    EXPECT_EQ(copies.fetched_bytes(), 7 * kNumel * 4);
    EXPECT_EQ(copies.sent_bytes(), 7 * 800 * 2);
  });
}

}  // namespace
}  // namespace trireme::detail::offload_test
