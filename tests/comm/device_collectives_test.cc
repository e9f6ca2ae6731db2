// Collectives on memory of a device: one whose work is late, in the host's memory, and a GPU where
// there is one.

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "device/buffer.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::Bytes;
using testing::kLateDevice;

constexpr Device kDevice = kLateDevice;  // the first GPU, or what stands in for it

// Whether ranks use a GPU. Their parent must not: a driver does not come along with fork.
class DeviceCollectives : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && access("/dev/nvidiactl", F_OK) != 0) {
      GTEST_SKIP() << "no GPU here: /dev/nvidiactl is not there";
    }
  }

  void fork_world(int size, const std::function<void(World& world)>& body) const {
    testing::fork_world(size, [&](World& world) {
      if (!GetParam()) {
        // For as long as the process lives, as a GPU's: the world has memory of it to its end.
        new testing::WithLateDevice;
      }
      body(world);
    });
  }
};

// Where ranks see each other's memory.
class SharedDeviceMemory : public DeviceCollectives {
 protected:
  void SetUp() override {
    if (!testing::in_shared_memory()) {
      GTEST_SKIP() << testing::kOtherSize << "shared memory";
    }
    DeviceCollectives::SetUp();
  }
};

std::string place(const ::testing::TestParamInfo<bool>& each) {
  return each.param ? "AGpu" : "ALateDevice";
}
INSTANTIATE_TEST_SUITE_P(On, DeviceCollectives, ::testing::Bool(), place);
INSTANTIATE_TEST_SUITE_P(On, SharedDeviceMemory, ::testing::Bool(), place);

device::Stream& stream() {
  return device::driver(kDevice).stream();
}

void put(const Span& to, const Bytes& bytes) {
  // Issued, and not waited for: a collective that comes next has to.
  const auto kept = std::make_shared<const Bytes>(bytes);
  stream().copy(to, {kept->data(), to.numel(), to.dtype(), kept});
}

Bytes get(const ConstSpan& from) {
  Bytes bytes(from.size_bytes());
  if (!bytes.empty()) {
    stream().copy({bytes.data(), from.numel(), from.dtype()}, from);
  }
  EXPECT_TRUE(stream().record().wait(Deadline(std::chrono::minutes(1))));
  return bytes;
}

Bytes part(const Bytes& bytes, Dtype dtype, Range range) {
  const auto at = [&](std::int64_t element) {
    return bytes.begin() + element * static_cast<std::int64_t>(dtype_bytes(dtype));
  };
  return {at(range.begin), at(range.end)};
}

constexpr Dtype kTypes[] = {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16, Dtype::kInt64};
constexpr std::int64_t kLengths[] = {0, 1, 5, 1000, 100'003};

TEST_P(DeviceCollectives, SumInRankOrder) {
  for (const int size : {1, 2, 3, 4}) {
    fork_world(size, [&](World& world) {
      const SharedBuffer buffer = world.allocate(std::size_t{1} << 20, kDevice);
      EXPECT_EQ(buffer.device(), kDevice);
      for (const Dtype dtype : kTypes) {
        for (const std::int64_t numel : kLengths) {
          std::vector<Bytes> inputs;
          inputs.reserve(static_cast<std::size_t>(size));
          for (int rank = 0; rank < size; ++rank) {
            inputs.push_back(testing::make_input(dtype, numel, rank));
          }
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
            const Bytes expected =
                numel == 0 ? Bytes() : testing::reduce_in_order(dtype, op, inputs);
            const Span data = buffer.span(dtype, numel, 64);
            put(data, inputs[static_cast<std::size_t>(world.rank())]);
            world.all_reduce(data, op).wait();
            ASSERT_EQ(get(data), expected) << dtype_name(dtype) << " " << numel;

            const Range mine = even_range(numel, size, world.rank());
            const device::Buffer own(static_cast<std::size_t>(mine.size()) * 8 + 1, kDevice);
            put(data, inputs[static_cast<std::size_t>(world.rank())]);
            world.reduce_scatter(data, own.span(dtype, mine.size()), op).wait();
            ASSERT_EQ(get(own.span(dtype, mine.size())), part(expected, dtype, mine));
          }
        }
      }
    });
  }
}

// What an engine asks for: 16-bit terms added to float32 sums, some of which are new, some absent.
TEST_P(DeviceCollectives, AddsToSumsAndLeavesOutWhatIsAbsent) {
  constexpr std::int64_t kNumel = 4001;
  fork_world(3, [&](World& world) {
    const SharedBuffer buffer = world.allocate(kNumel * 2, kDevice);
    const Range mine = even_range(kNumel, 3, world.rank());
    const Bytes old = testing::make_input(Dtype::kFloat32, kNumel, 50);
    std::vector<device::Term> terms;
    terms.reserve(3);
    std::vector<Bytes> inputs;
    inputs.reserve(3);
    const std::vector<std::vector<Range>> absent = {{}, {{100, 2000}}, {{0, 5}, {1999, 4001}}};
    for (std::size_t rank = 0; rank < 3; ++rank) {
      inputs.push_back(testing::make_input(Dtype::kBFloat16, kNumel, static_cast<int>(rank)));
    }
    for (std::size_t rank = 0; rank < 3; ++rank) {
      terms.push_back({reinterpret_cast<const std::byte*>(inputs[rank].data()),
                       absent[rank].data(),
                       absent[rank].size()});
    }
    Bytes expected = old;
    auto* output = reinterpret_cast<std::byte*>(expected.data());
    const device::Term accumulator{output};
    device::host().reduce({.dtype = Dtype::kBFloat16,
                           .output_dtype = Dtype::kFloat32,
                           .range = {0, kNumel},
                           .terms = terms,
                           .accumulator = &accumulator,
                           .outputs = std::span(&output, 1)});
    const Span data = buffer.span(Dtype::kBFloat16, kNumel);
    const device::Buffer sums(static_cast<std::size_t>(mine.size()) * 4, kDevice);
    const Span own = sums.span(Dtype::kFloat32, mine.size());
    put(data, inputs[static_cast<std::size_t>(world.rank())]);
    put(own, part(old, Dtype::kFloat32, mine));
    world
        .reduce_scatter(
            data,
            own,
            ReduceOp::kSum,
            {},
            {.absent = absent[static_cast<std::size_t>(world.rank())], .accumulate = true})
        .wait();
    EXPECT_EQ(get(own), part(expected, Dtype::kFloat32, mine));
  });
}

TEST_P(DeviceCollectives, GatherAndBroadcast) {
  for (const int size : {1, 2, 3, 4}) {
    fork_world(size, [&](World& world) {
      const SharedBuffer buffer = world.allocate(std::size_t{1} << 20, kDevice);
      const Dtype dtype = Dtype::kFloat32;
      for (const std::int64_t numel : kLengths) {
        const Bytes whole = testing::make_input(dtype, numel, 9);
        const Range mine = even_range(numel, size, world.rank());
        const device::Buffer own(static_cast<std::size_t>(numel) * 4 + 1, kDevice);
        const Span data = buffer.span(dtype, mine.size());
        put(data, part(whole, dtype, mine));
        world.all_gather(data, own.span(dtype, numel)).wait();
        ASSERT_EQ(get(own.span(dtype, numel)), whole) << numel;
        // In place: each rank's part is where it belongs.
        const Span all = buffer.span(dtype, numel);
        stream().clear(all);
        put(all.part(mine.begin, mine.size()), part(whole, dtype, mine));
        world.all_gather(all.part(mine.begin, mine.size()), all).wait();
        ASSERT_EQ(get(all), whole) << numel;
        for (int root = 0; root < size; ++root) {
          const Bytes theirs = testing::make_input(dtype, numel, root);
          put(all, testing::make_input(dtype, numel, world.rank()));
          world.broadcast(all, root).wait();
          ASSERT_EQ(get(all), theirs) << numel;
        }
      }
    });
  }
}

TEST_P(DeviceCollectives, SeveralAreInFlightAtATime) {
  constexpr int kAtATime = 20;
  constexpr std::int64_t kNumel = 1000;
  fork_world(2, [&](World& world) {
    const SharedBuffer buffer = world.allocate(kAtATime * kNumel * 4, kDevice);
    std::vector<Work> works;
    const std::vector<float> own(kNumel, static_cast<float>(world.rank() + 1));
    for (int i = 0; i < kAtATime; ++i) {
      const Span data = buffer.span(Dtype::kFloat32, kNumel, static_cast<std::size_t>(i) * 4000);
      stream().copy(data, own);
      works.push_back(world.all_reduce(data));
    }
    for (int i = kAtATime - 1; i >= 0; --i) {
      works[static_cast<std::size_t>(i)].wait();
      std::vector<float> sum(kNumel);
      const Bytes bytes =
          get(buffer.span(Dtype::kFloat32, kNumel, static_cast<std::size_t>(i) * 4000));
      std::memcpy(sum.data(), bytes.data(), bytes.size());
      ASSERT_EQ(sum, std::vector<float>(kNumel, 3.0F));
    }
  });
}

// Between calls on memory of the host, which tell their peers at once where there are messages.
TEST_P(DeviceCollectives, KeepTheirOrderAmongOthers) {
  constexpr std::int64_t kNumel = 100'000;
  fork_world(3, [&](World& world) {
    const SharedBuffer buffer = world.allocate(4 * kNumel * 4, kDevice);
    std::vector<std::vector<float>> here(4);
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) {
      const Span data =
          buffer.span(Dtype::kFloat32, kNumel, static_cast<std::size_t>(i * kNumel * 4));
      const auto own =
          std::make_shared<const std::vector<float>>(kNumel, static_cast<float>(i + world.rank()));
      stream().copy(data, {own->data(), kNumel, Dtype::kFloat32, own});
      works.push_back(world.all_reduce(data));
      here[static_cast<std::size_t>(i)].assign(i % 2 == 0 ? 10 : kNumel,
                                               static_cast<float>(world.rank()));
      works.push_back(world.all_reduce(here[static_cast<std::size_t>(i)]));
      works.push_back(world.barrier());
    }
    for (Work& work : works) {
      work.wait();
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<float> sum(kNumel);
      const Bytes bytes =
          get(buffer.span(Dtype::kFloat32, kNumel, static_cast<std::size_t>(i * kNumel * 4)));
      std::memcpy(sum.data(), bytes.data(), bytes.size());
      ASSERT_EQ(sum, std::vector<float>(kNumel, static_cast<float>(3 * i + 3)));
      ASSERT_EQ(here[static_cast<std::size_t>(i)],
                std::vector<float>(here[static_cast<std::size_t>(i)].size(), 3.0F));
    }
  });
}

TEST_P(SharedDeviceMemory, RefuseByNameWhatTheyCannotDo) {
  fork_world(2, [&](World& world) {
    const SharedBuffer buffer = world.allocate(4000, kDevice);
    const Span data = buffer.span(Dtype::kFloat32, 100);
    const device::Buffer own(4000, kDevice);
    std::vector<float> here(100);
    const auto expect = [&](const std::function<void()>& call, const char* words) {
      const std::string message = testing::message_of<ConfigError>(call);
      EXPECT_NE(message.find(words), std::string::npos) << message;
    };
    expect([&] { world.all_reduce(own.span(Dtype::kFloat32, 100)).wait(); },
           "all_reduce: memory of cuda:0 cannot be communicated where the other ranks do not see");
    expect([&] { world.send(data, 1 - world.rank()).wait(); },
           "send: memory of cuda:0 cannot be communicated by this operation, only by all_reduce");
    const Span whole = buffer.span(Dtype::kFloat32, 200);
    expect([&] { world.gather(data, world.rank() == 0 ? whole : Span()).wait(); },
           "gather: memory of cuda:0 cannot be communicated by this operation");
    expect([&] { world.all_gather(data.part(0, 50), here).wait(); },
           "all_gather: the input is on cuda:0 and the output on cpu");
    world.all_reduce(data).wait();  // and goes on
  });
}

TEST_P(SharedDeviceMemory, NameRanksWhoseMemoryIsElsewhere) {
  fork_world(2, [&](World& world) {
    const SharedBuffer buffer = world.allocate(4000, kDevice);
    std::vector<float> here(100);
    const std::string message = testing::message_of<CommError>([&] {
      world.all_reduce(world.rank() == 0 ? Span(here) : buffer.span(Dtype::kFloat32, 100)).wait();
    });
    EXPECT_NE(message.find("with memory of different devices"), std::string::npos) << message;
    EXPECT_NE(message.find("all_reduce(sum, float32 x 100 on a GPU)"), std::string::npos)
        << message;
  });
}

TEST_P(SharedDeviceMemory, FindARankThatIsKilled) {
  const std::string job = testing::unique_job();
  const auto rank = [&](int number) {
    std::optional<testing::WithLateDevice> late;
    if (!GetParam()) {
      late.emplace();
    }
    const auto world = init(testing::options_for(job, number, 2));
    const SharedBuffer buffer = world->allocate(4000, kDevice);
    world->all_reduce(buffer.span(Dtype::kFloat32, 1000)).wait();
    if (number == 1) {
      raise(SIGKILL);
    }
    const std::string message = testing::message_of<CommError>(
        [&] { world->all_reduce(buffer.span(Dtype::kFloat32, 1000)).wait(); });
    EXPECT_NE(message.find("crashed or was killed"), std::string::npos) << message;
  };
  const pid_t first = testing::fork_rank(0, rank);
  const pid_t second = testing::fork_rank(1, rank);
  EXPECT_EQ(testing::wait_for(first), 0);
  EXPECT_EQ(testing::wait_for(second), SIGKILL);
}

// Bytes of a part by which all differ.
Bytes marked(std::int64_t bytes, int rank) {
  Bytes all(static_cast<std::size_t>(bytes));
  for (std::size_t at = 0; at < all.size(); ++at) {
    all[at] = static_cast<std::uint8_t>(31 * (rank + 1) + static_cast<int>(at % 7));
  }
  return all;
}

std::vector<Counts> divisions(int size) {
  Counts uneven;
  Counts small;
  Counts last(static_cast<std::size_t>(size), 0);
  last.back() = 5'000'000;
  for (int rank = 0; rank < size; ++rank) {
    uneven.push_back(3'000'000 + 1'234'567 * rank);
    small.push_back(64 * (rank + 1));
  }
  return {uneven, small, last, Counts(static_cast<std::size_t>(size), 0)};
}

Bytes run_of(const Counts& division) {
  Bytes all;
  for (std::size_t rank = 0; rank < division.size(); ++rank) {
    const Bytes theirs = marked(division[rank], static_cast<int>(rank));
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

TEST_P(SharedDeviceMemory, MapOneRunThatEachWritesItsPartOf) {
  for (const int size : {1, 2, 3}) {
    fork_world(size, [&](World& world) {
      for (const Counts& division : divisions(size)) {
        const SharedBuffer buffer = world.allocate_run(division, kDevice);
        const Bytes expected = run_of(division);
        const auto total = static_cast<std::int64_t>(expected.size());
        const std::int64_t own = division[static_cast<std::size_t>(world.rank())];
        EXPECT_EQ(buffer.size_bytes(), static_cast<std::size_t>(own));
        const std::size_t page = device::driver(kDevice).page_bytes();
        EXPECT_EQ(buffer.taken_bytes(),
                  std::max<std::size_t>(1, (expected.size() + page - 1) / page) * page);
        const ConstSpan whole(buffer.whole(), total, Dtype::kUint8, {}, kDevice);
        ASSERT_EQ(get(whole), Bytes(expected.size(), 0)) << "zero at first";
        world.barrier().wait();
        put(buffer.span(Dtype::kUint8, own), marked(own, world.rank()));
        EXPECT_TRUE(stream().record().wait(Deadline(std::chrono::minutes(1))));
        world.barrier().wait();
        ASSERT_EQ(get(whole), expected);
        ASSERT_EQ(get({buffer.whole_read_only(), total, Dtype::kUint8, {}, kDevice}), expected);
        // The part that the others see can be communicated.
        std::vector<std::int64_t> counts = division;
        if (own > 0 && size > 1) {
          const device::Buffer all(expected.size() + 1, kDevice);
          world.all_gather(buffer.span(Dtype::kUint8, own), all.span(Dtype::kUint8, total), counts)
              .wait();
          ASSERT_EQ(get(all.span(Dtype::kUint8, total)), expected);
        } else if (size > 1 && total > 0) {
          const device::Buffer all(expected.size() + 1, kDevice);
          world
              .all_gather(
                  {nullptr, 0, Dtype::kUint8, {}, kDevice}, all.span(Dtype::kUint8, total), counts)
              .wait();
        }
      }
    });
  }
}

TEST_P(SharedDeviceMemory, MapARunWhereOthersPagesCannotBeWritten) {
  fork_world(2, [&](World& world) {
    const auto page = static_cast<std::int64_t>(device::open(kDevice).page_bytes());
    const SharedBuffer buffer = world.allocate_run({2 * page + 64, 2 * page}, kDevice);
    const std::int64_t theirs = world.rank() == 0 ? 3 * page : 0;
    world.barrier().wait();
    const auto write = [&](const std::byte* at) {
      const std::vector<std::uint8_t> nine(64, 9);
      stream().copy({const_cast<std::byte*>(at), 64, Dtype::kUint8, {}, kDevice}, nine);
      static_cast<void>(stream().record().wait(Deadline(std::chrono::minutes(1))));
    };
    write(buffer.data());  // its own
    world.barrier().wait();
    if (GetParam()) {
      EXPECT_THROW(write(buffer.whole() + theirs), Error);
    } else {
      EXPECT_DEATH(const_cast<std::byte&>(*(buffer.whole() + theirs)) = std::byte{9}, "");
      EXPECT_DEATH(const_cast<std::byte&>(*buffer.whole_read_only()) = std::byte{9}, "");
    }
    world.barrier().wait();
  });
}

TEST_P(SharedDeviceMemory, RefuseRunsThatAreNotTheSameEverywhere) {
  fork_world(2, [&](World& world) {
    EXPECT_NE(testing::message_of<ConfigError>([&] {
                world.allocate_run({1, 2, 3}, kDevice);
              }).find("expected a number of bytes for each of 2 ranks, found 3"),
              std::string::npos);
    EXPECT_NE(testing::message_of<ConfigError>([&] {
                world.allocate_run({1, -2}, kDevice);
              }).find("a part cannot have -2 bytes"),
              std::string::npos);
    const std::string message = testing::message_of<CommError>([&] {
      world.allocate_run(world.rank() == 0 ? Counts{64, 128} : Counts{128, 64}, kDevice);
    });
    EXPECT_NE(message.find("with different counts"), std::string::npos) << message;
  });
}

// What a rank has made stays for those who map it; the next operation finds that it is gone.
TEST_P(SharedDeviceMemory, KeepARunOfARankThatIsKilled) {
  const std::string job = testing::unique_job();
  const Counts division = {3'000'000, 4'000'000};
  const auto rank = [&](int number) {
    std::optional<testing::WithLateDevice> late;
    if (!GetParam()) {
      late.emplace();
    }
    const auto world = init(testing::options_for(job, number, 2));
    const SharedBuffer buffer = world->allocate_run(division, kDevice);
    const std::int64_t own = division[static_cast<std::size_t>(number)];
    put(buffer.span(Dtype::kUint8, own), marked(own, number));
    EXPECT_TRUE(stream().record().wait(Deadline(std::chrono::minutes(1))));
    world->barrier().wait();
    if (number == 1) {
      raise(SIGKILL);
    }
    const std::string message = testing::message_of<CommError>([&] { world->barrier().wait(); });
    EXPECT_NE(message.find("crashed or was killed"), std::string::npos) << message;
    EXPECT_EQ(get({buffer.whole_read_only(), 7'000'000, Dtype::kUint8, {}, kDevice}),
              run_of(division));
  };
  const pid_t first = testing::fork_rank(0, rank);
  const pid_t second = testing::fork_rank(1, rank);
  EXPECT_EQ(testing::wait_for(first), 0);
  EXPECT_EQ(testing::wait_for(second), SIGKILL);
}

// The lanes of an algorithm with a name are on the host; nobody has taken part in anything then.
TEST(DeviceCollectivesByName, AreRefused) {
  if (!testing::in_shared_memory()) {
    GTEST_SKIP() << testing::kOtherSize << "shared memory";
  }
  for (const char* name : {"ring", "tree", "doubling", "aggregator"}) {
    testing::fork_world(
        2,
        [name](World& world) {
          const testing::WithLateDevice late;
          const std::string message =
              testing::message_of<ConfigError>([&] { world.allocate(4000, kDevice); });
          for (const std::string part : {name, "memory of the host", "only one is \"direct\""}) {
            EXPECT_NE(message.find(part), std::string::npos) << message;
          }
          std::vector<float> here(100'000, 1);
          world.all_reduce(here).wait();
        },
        [name](InitOptions& options) { options.algorithm = name; });
  }
  testing::fork_world(
      2,
      [](World& world) {
        const testing::WithLateDevice late;
        const SharedBuffer buffer = world.allocate(4000, kDevice);
        world.all_reduce(buffer.span(Dtype::kFloat32, 1000)).wait();
      },
      [](InitOptions& options) { options.algorithm = "direct"; });
}

// A collective begins when what was issued before it is done, and not earlier.
TEST(DeviceCollectivesOrder, AwaitWhatWasIssuedBefore) {
  if (!testing::in_shared_memory()) {
    GTEST_SKIP() << testing::kOtherSize << "shared memory";
  }
  testing::fork_world(2, [&](World& world) {
    testing::WithLateDevice late;
    const SharedBuffer buffer = world.allocate(4000, kDevice);
    const std::vector<float> ones(1000, 1.0F);
    if (world.rank() == 0) {
      late.stream().pause();
    }
    late.stream().copy(buffer.span(Dtype::kFloat32, 1000), ones);
    Work work = world.all_reduce(buffer.span(Dtype::kFloat32, 1000));
    for (int i = 0; i < 20 && world.rank() == 0; ++i) {
      EXPECT_FALSE(work.done());
      usleep(1000);
    }
    if (world.rank() == 0) {
      late.stream().resume();
    }
    work.wait();
    std::vector<float> sums(1000);
    const Bytes bytes = get(buffer.span(Dtype::kFloat32, 1000));
    std::memcpy(sums.data(), bytes.data(), bytes.size());
    EXPECT_EQ(sums, std::vector<float>(1000, 2.0F));
  });
}

}  // namespace
}  // namespace trireme
