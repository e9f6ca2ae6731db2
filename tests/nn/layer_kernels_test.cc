// The kernels of layers without a GPU: the compiler takes them, for each type of elements, for
// packs and rows of every kind, and for GPUs old and new.

#include <gtest/gtest.h>

#include "device/cuda/kernels.h"
#include "nn/kernel_launch.h"
#include "trireme/core/error.h"

namespace trireme::nn::layer_kernels_test {
namespace {

using device::cuda::KernelCompiler;

struct Variant {
  KernelKind kind;
  int architecture;
};

constexpr Variant kVariants[] = {{{at::kBFloat16, 8, 768}, 90},
                                 {{at::kBFloat16, 1, 7}, 80},
                                 {{at::kHalf, 4, 100}, 90},
                                 {{at::kHalf, 8, 8192}, 80},
                                 {{at::kFloat, 4, 1600}, 90}};

TEST(LayerKernels, AreTakenByTheCompiler) {
  try {
    KernelCompiler::instance();
  } catch (const ConfigError& error) {
    GTEST_SKIP() << "no NVRTC here: " << error.what();
  }
  for (const Variant& variant : kVariants) {
    for (const char* file : {"columns", "cross_entropy", "norm"}) {
      const std::string code = KernelCompiler::instance().compile(
          device::cuda::other_kernels(text_of(file, variant.kind), variant.architecture));
      EXPECT_GT(code.size(), 1000U) << file;
    }
  }
}

// As large as rows and addresses allow.
TEST(LayerKernels, ReadPacksThatAreAligned) {
  EXPECT_EQ(kind_of(at::kBFloat16, 768, {4096, 512}).pack, 8);
  EXPECT_EQ(kind_of(at::kFloat, 768, {4096}).pack, 4);
  EXPECT_EQ(kind_of(at::kBFloat16, 100, {4096}).pack, 4);
  EXPECT_EQ(kind_of(at::kBFloat16, 7, {4096}).pack, 1);
  EXPECT_EQ(kind_of(at::kBFloat16, 768, {4096, 4098}).pack, 1);
  EXPECT_EQ(kind_of(at::kBFloat16, 768, {4096, 4104, 0}).pack, 4);
}

}  // namespace
}  // namespace trireme::nn::layer_kernels_test
