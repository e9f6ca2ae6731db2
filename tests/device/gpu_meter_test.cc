// What GPUs report of themselves, from a management library that is not there
// (support/stub_nvml.cc).

#include "device/gpu_meter.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::GpuMeter;

std::string first() {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    text += "07";
  }
  return text;
}

constexpr char kSecond[] = "00112233445566778899aabbccddeeff";

TEST(GpuMeter, ReadsOne) {
  const GpuUse use = GpuMeter({first()}).read();
  EXPECT_EQ(use.busy_percent, 90);
  EXPECT_EQ(use.memory_bytes, 5'000'000'000);
  EXPECT_EQ(use.temperature, 61);
  EXPECT_EQ(use.watts, 300.5);
}

TEST(GpuMeter, PutsSeveralTogether) {
  const GpuUse use = GpuMeter({first(), kSecond}).read();
  EXPECT_EQ(use.busy_percent, 70);
  EXPECT_EQ(use.memory_bytes, 7'000'000'000);
  EXPECT_EQ(use.temperature, 61);
  EXPECT_EQ(use.watts, 500.5);
}

TEST(GpuMeter, NamesAGpuThatIsNotThere) {
  const std::string message =
      testing::message_of<ConfigError>([] { GpuMeter({std::string(32, 'f')}); });
  EXPECT_NE(message.find("does not find GPU-ffffffff-ffff-ffff-ffff-ffffffffffff: Not Found"),
            std::string::npos)
      << message;
}

TEST(GpuMeter, NamesOneThatIsLost) {
  const GpuMeter meter({first()});
  setenv("TRIREME_STUB_NVML", "0", /*overwrite=*/1);
  const std::string message = testing::message_of<DeviceError>([&] { meter.read(); });
  unsetenv("TRIREME_STUB_NVML");
  EXPECT_NE(message.find("does not answer: GPU is lost"), std::string::npos) << message;
}

}  // namespace
}  // namespace trireme
