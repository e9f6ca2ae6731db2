// A GPU's memory, shared and not, and the order of its streams.

#include <memory>
#include <vector>

#include "support/gpu.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::Event;
using testing::gpu_stream;
using testing::kGpu;

class CudaMemory : public testing::GpuTest {};

TEST_F(CudaMemory, OrdersStreamsByEventsAndKeepsTheMemoryOfItsSpans) {
  const auto second = device::driver(kGpu).make_stream();
  constexpr std::int64_t kNumel = 1 << 24;
  auto from = std::make_shared<device::Buffer>(kNumel * 4, kGpu);
  const device::Buffer between(kNumel * 4, kGpu);
  const std::weak_ptr<const void> alive = from;
  const std::vector<float> ones(1000, 1.0F);
  second->copy(from->span(Dtype::kFloat32, 1000), ones);
  for (int i = 0; i < 20; ++i) {  // so that the other stream would be too early
    second->copy(between.span(Dtype::kFloat32, kNumel),
                 {from->data(), kNumel, Dtype::kFloat32, from, kGpu});
  }
  from.reset();
  const Event filled = second->record();
  const auto third = device::driver(kGpu).make_stream();
  third->wait(filled);
  std::vector<float> result(1000);
  third->copy(result, between.span(Dtype::kFloat32, 1000));
  const Event done = third->record();
  ASSERT_TRUE(done.wait(Deadline(std::chrono::minutes(1))));
  EXPECT_TRUE(filled.passed());
  EXPECT_EQ(result, ones);
  second->record();
  EXPECT_TRUE(alive.expired());
}

TEST_F(CudaMemory, RefusesMemoryOfTheHost) {
  std::vector<float> values(3);
  const std::string message =
      testing::message_of<InternalError>([&] { gpu_stream().clear(values); });
  EXPECT_NE(message.find("the stream of cuda:0 cannot work on memory of cpu"), std::string::npos)
      << message;
}

TEST_F(CudaMemory, NamesAGpuThatIsNotThere) {
  const std::string message = testing::message_of<ConfigError>([] {
    device::use_cuda({DeviceType::kCuda, 99});
  });
  EXPECT_NE(message.find("cuda:99 was asked for, but this process sees"), std::string::npos)
      << message;
}

TEST_F(CudaMemory, NamesMemoryThatItDoesNotHave) {
  const std::string message =
      testing::message_of<MemoryError>([] { device::Buffer(std::size_t{1} << 50, kGpu); });
  EXPECT_NE(message.find("the GPU has no memory left"), std::string::npos) << message;
}

// Two ranks' ends of shared memory, both in this process.
TEST_F(CudaMemory, MapsSharedMemoryForItsOwnerToWriteAndOthersToRead) {
  device::Driver& driver = device::driver(kGpu);
  const std::size_t bytes = driver.page_bytes();
  const auto numel = static_cast<std::int64_t>(bytes / 4);
  std::vector<FileDescriptor> offers;
  for (int rank = 0; rank < 2; ++rank) {
    auto theirs = driver.offer(device::separate_parts(rank, 2, bytes, bytes));
    ASSERT_EQ(theirs.size(), 1U);
    offers.push_back(std::move(theirs.front()));
    ASSERT_TRUE(offers.back().valid());
  }
  const auto first = driver.map(device::separate_parts(0, 2, bytes, bytes), offers);
  const auto second = driver.map(device::separate_parts(1, 2, bytes, bytes), offers);
  offers.clear();  // mappings need no descriptors
  EXPECT_EQ(first->size_bytes(), 2 * bytes);
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  const auto at = [&](const std::byte* data) {
    return Span(const_cast<std::byte*>(data), numel, Dtype::kFloat32, {}, kGpu);
  };
  std::vector<float> read(values.size(), 1.0F);
  gpu_stream().copy(read, at(second->data() + bytes));
  EXPECT_EQ(read, std::vector<float>(values.size())) << "zero at first";
  gpu_stream().copy(at(second->data() + bytes), values);
  gpu_stream().copy(read, at(first->data() + bytes));
  EXPECT_EQ(read, values);
  gpu_stream().copy(read, at(first->read_only() + bytes));
  EXPECT_EQ(read, values);
  // A write through the mapping of somebody else is refused, and the memory stays as it is.
  EXPECT_THROW(gpu_stream().copy(at(first->data() + bytes), values), Error);
}

}  // namespace
}  // namespace trireme
