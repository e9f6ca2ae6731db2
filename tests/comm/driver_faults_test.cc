// What a GPU's driver answers when something is wrong, planted in one that is not there
// (support/stub_cuda.cc): each is named, on every rank, and nobody waits for ever.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/cuda/cuda_driver.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::Bytes;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr std::int64_t kBytes = 5'000'000;

void plant(const char* faults) {
  setenv("TRIREME_STUB_CUDA", faults, /*overwrite=*/1);
}

// Memory that all see, and one gather of what everybody has written to its own part.
void use_gpu_together(World& world) {
  device::use_cuda(kGpu);
  const SharedBuffer buffer = world.allocate(kBytes, kGpu);
  const device::Buffer all(static_cast<std::size_t>(kBytes * world.size()), kGpu);
  const Span mine = buffer.span(Dtype::kUint8, kBytes);
  const Bytes bytes(kBytes, static_cast<std::uint8_t>(world.rank() + 1));
  device::Stream& stream = device::driver(kGpu).stream();
  for (int round = 0; round < 2; ++round) {
    stream.copy(mine, {reinterpret_cast<const std::byte*>(bytes.data()), kBytes, Dtype::kUint8});
    world.all_gather(mine, all.span(Dtype::kUint8, kBytes * world.size())).wait();
  }
  Bytes result(static_cast<std::size_t>(kBytes * world.size()));
  stream.copy({reinterpret_cast<std::byte*>(result.data()), kBytes * world.size(), Dtype::kUint8},
              all.span(Dtype::kUint8, kBytes * world.size()));
  EXPECT_TRUE(stream.record().wait(Deadline(std::chrono::minutes(1))));
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(Bytes(result.begin() + rank * kBytes, result.begin() + (rank + 1) * kBytes),
              Bytes(kBytes, static_cast<std::uint8_t>(rank + 1)));
  }
}

class DriverFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::in_shared_memory()) {
      GTEST_SKIP() << testing::kOtherSize << "shared memory";
    }
  }
};

TEST_F(DriverFaults, AreNotThereInPeace) {
  testing::fork_world(3, use_gpu_together);
}

struct Fault {
  const char* name;
  const char* planted;
  // What the rank says that has the GPU, and what another one says.
  std::vector<const char*> own;
  std::vector<const char*> other;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.planted;
}

class DriverFault : public DriverFaults, public ::testing::WithParamInterface<Fault> {};

const Fault kFaults[] = {
    {"NoMemoryToShare", "cuMemCreate=2", {"no memory left while making shared memory"}, {"rank 1"}},
    {"NoDescriptor", "cuMemExportToShareableHandle=1", {"while making a descriptor"}, {"rank 1"}},
    {"MemoryOfOthersRefused",
     "cuMemImportFromShareableHandle=1",
     {"memory of another rank"},
     {"rank 1"}},
    {"NoRoomToMap", "cuMemMap@2=2", {"no memory left while mapping"}, {"rank 1"}},
    {"NoAccess", "cuMemSetAccess=1", {"GPUs with access to each other"}, {"rank 1"}},
    {"NoMemoryOfItsOwn", "cuMemAlloc_v2=2", {"no memory left while taking memory"}, {"rank 1"}},
    {"FailsWhileCopying", "cuMemcpyAsync@2=719", {"CUDA_ERROR_LAUNCH_FAILED"}, {"rank 1"}},
    {"FailsWhileWorking", "cuEventQuery@2=700", {"CUDA_ERROR_ILLEGAL_ADDRESS"}, {"rank 1"}},
    // By whichever of them has waited long enough first.
    {"IsStuck", "cuEventQuery@2=600", {"s for ", "rank 1 (pid"}, {"s for ", "rank 1 (pid"}},
};

INSTANTIATE_TEST_SUITE_P(On, DriverFault, ::testing::ValuesIn(kFaults), [](const auto& each) {
  return each.param.name;
});

TEST_P(DriverFault, IsNamedOnEveryRank) {
  const auto use_faulty_gpu = [](World& world) {
    if (world.rank() == 1) {
      plant(GetParam().planted);
    }
    const std::string message = testing::message_of<Error>([&] { use_gpu_together(world); });
    for (const char* words : world.rank() == 1 ? GetParam().own : GetParam().other) {
      EXPECT_NE(message.find(words), std::string::npos)
          << "rank " << world.rank() << ": " << message;
    }
  };
  testing::fork_world(
      2, use_faulty_gpu, [](InitOptions& options) { options.timeout = Milliseconds(5000); });
}

TEST_F(DriverFaults, AGpuThatIsStuckIsNamedAsSuch) {
  const auto use_stuck_gpu = [](World& world) {
    plant("cuEventQuery@2=600");
    const std::string message = testing::message_of<CommError>([&] { use_gpu_together(world); });
    EXPECT_NE(message.find("s for the GPU of rank 0 (pid"), std::string::npos) << message;
    EXPECT_NE(message.find("has not done what was issued to it"), std::string::npos) << message;
  };
  testing::fork_world(
      1, use_stuck_gpu, [](InitOptions& options) { options.timeout = Milliseconds(1000); });
}

}  // namespace
}  // namespace trireme
