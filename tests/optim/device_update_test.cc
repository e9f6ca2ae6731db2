// Rules on a device whose work is late, in place of a GPU: with the texts of the kernels that a GPU
// compiles, where a rule has more than a formula. And that its compiler takes all of them.

#include <map>
#include <string>

#include "device/cuda/kernels.h"
#include "optim/updates_on_device.h"
#include "support/late_device.h"

namespace trireme {
namespace {

class DeviceUpdate : public ::testing::Test {
 protected:
  testing::WithLateDevice device_;
};

TEST_F(DeviceUpdate, OfEveryFormulaHasTheHostsBytes) {
  testing::expect_host_bytes_of_all_rules();
}

TEST_F(DeviceUpdate, OfLambHasTheHostsBytes) {
  testing::expect_host_bytes_of_lamb();
}

TEST_F(DeviceUpdate, OfAdafactorHasTheHostsBytes) {
  testing::expect_host_bytes_of_adafactor();
}

TEST_F(DeviceUpdate, OfMuonHasTheHostsBytes) {
  testing::expect_host_bytes_of_muon();
}

TEST_F(DeviceUpdate, IsMadeOfTextsThatTheCompilerTakes) {
  using device::cuda::KernelCompiler;
  try {
    KernelCompiler::instance();
  } catch (const ConfigError& error) {
    GTEST_SKIP() << "no NVRTC here: " << error.what();
  }
  std::map<std::string, device::cuda::KernelSource> sources;
  device_.stream().on_rule = [&](const device::UpdateRule& rule) {
    sources[detail::concat("{} of {}", {rule.name, rule.states})] =
        device::cuda::rule_kernels(rule, 90);
  };
  device_.stream().on_kernel = [&](const device::BlockKernel& kernel) {
    sources[kernel.name] = device::cuda::block_kernel(kernel, 90);
  };
  testing::expect_host_bytes_of_all_rules();
  testing::expect_host_bytes_of_lamb();
  testing::expect_host_bytes_of_adafactor();
  testing::expect_host_bytes_of_muon();
  EXPECT_EQ(sources.count("LambRule of 2"), 1U);
  EXPECT_EQ(sources.count("LineSquaresFloat64"), 1U);
  for (const auto& [name, source] : sources) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(
        KernelCompiler::instance().compile(source).starts_with("\x7F"
                                                               "ELF"));
  }
}

}  // namespace
}  // namespace trireme
