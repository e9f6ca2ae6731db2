// Kernels without a GPU: what is kept of them on disk, and that the compiler takes all of them.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "device/cuda/kernel_cache.h"
#include "device/cuda/kernels.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::SourceText;
using device::cuda::ingredients_of;
using device::cuda::KernelCache;
using device::cuda::KernelCompiler;
using device::cuda::KernelSource;

class Compiler {
 public:
  std::string operator()() {
    ++calls;
    return std::string("code\0with a zero", 16);
  }
  int calls = 0;
};

std::string get(const KernelCache& cache, Compiler& compiler, const std::string& ingredients) {
  return cache.get(ingredients, [&] { return compiler(); });
}

TEST(KernelCache, CompilesOnceForTheSameIngredients) {
  const testing::TemporaryFolder folder;
  const KernelCache cache(folder.path() + "/not/there/yet");
  Compiler compiler;
  const std::string code = get(cache, compiler, "a");
  EXPECT_EQ(get(cache, compiler, "a"), code);
  EXPECT_EQ(get(KernelCache(folder.path() + "/not/there/yet"), compiler, "a"), code);
  EXPECT_EQ(compiler.calls, 1);
  get(cache, compiler, "b");
  EXPECT_EQ(compiler.calls, 2);
}

TEST(KernelCache, NoticesADamagedFileAndMakesItAnew) {
  const testing::TemporaryFolder folder;
  const KernelCache cache(folder.path());
  Compiler compiler;
  const std::string code = get(cache, compiler, "a");
  const std::string path = cache.file_of("a");
  const std::string good = testing::read_file(path);
  const auto expect_rebuilt = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    const int before = compiler.calls;
    EXPECT_EQ(get(cache, compiler, "a"), code);
    EXPECT_EQ(compiler.calls, before + 1) << content.size();
    EXPECT_EQ(testing::read_file(path), good);
  };
  for (std::size_t cut = 0; cut < good.size(); cut += 5) {
    expect_rebuilt(good.substr(0, cut));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    expect_rebuilt(damaged);
  }
  expect_rebuilt(good + "x");
}

TEST(KernelCache, WorksWhereNothingCanBeKept) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "not a folder";
  Compiler compiler;
  for (const KernelCache& cache : {KernelCache(""), KernelCache(folder.path() + "/file/below")}) {
    EXPECT_EQ(get(cache, compiler, "a").size(), 16U);
  }
  EXPECT_EQ(compiler.calls, 2);
}

TEST(KernelCache, TellsApartWhatMachineCodeDependsOn) {
  const SourceText text{"a.h", "int a;"};
  const SourceText other{"a.h", "int b;"};
  const KernelSource source{.main = "m", .texts = {text}, .architecture = 90};
  const std::string ingredients = ingredients_of(source, "13.0");
  EXPECT_NE(ingredients, ingredients_of(source, "13.1"));
  EXPECT_NE(ingredients,
            ingredients_of({.main = "n", .texts = {text}, .architecture = 90}, "13.0"));
  EXPECT_NE(ingredients,
            ingredients_of({.main = "m", .texts = {other}, .architecture = 90}, "13.0"));
  EXPECT_NE(ingredients,
            ingredients_of({.main = "m", .texts = {text}, .architecture = 80}, "13.0"));
}

class KernelCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      KernelCompiler::instance();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << "no NVRTC here: " << error.what();
    }
  }
};

TEST_F(KernelCompilerTest, TakesTheStreamsKernels) {
  for (const char* file : {"copy", "norms", "product", "reduce", "rows"}) {
    const std::string code =
        KernelCompiler::instance().compile(device::cuda::stream_kernels(file, 90));
    EXPECT_TRUE(
        code.starts_with("\x7F"
                         "ELF"))
        << file;
  }
}

TEST_F(KernelCompilerTest, NamesAGpuThatItDoesNotKnow) {
  try {
    KernelCompiler::instance().compile(device::cuda::stream_kernels("copy", 13));
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("of type sm_13, which NVRTC"), std::string::npos);
  }
}

TEST_F(KernelCompilerTest, SaysWhatIsWrongWithAKernel) {
  try {
    KernelCompiler::instance().compile({.main = "nonsense", .texts = {}, .architecture = 90});
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("nonsense"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme
