// Counting and bounding what tensors take.

#include "trireme/tensor/memory_limit.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/alignment.h>
#include <torch/nn/modules/linear.h>

#include "data/formula_dataset.h"
#include "train/out_of_memory.h"
#include "train/step_runner.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/settings/settings_table.h"

namespace trireme::memory_limit_test {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

// Tensors that are older than the first use, which must do no harm when they go.
at::Tensor* const g_before = [] {
  // Not at::ones, whose threads would be gone in the processes that other tests of this program
  // fork.
  auto* tensor = new at::Tensor(at::empty({1 << 20}));
  std::fill_n(tensor->mutable_data_ptr<float>(), tensor->numel(), 1.0F);
  return tensor;
}();

at::Tensor bytes(std::int64_t count) {
  return at::empty({count}, at::kByte);
}

class Limit : public ::testing::Test {
 protected:
  void SetUp() override { MemoryLimit::set(0); }
  void TearDown() override { MemoryLimit::set(0); }
};

TEST_F(Limit, CountsWhatComesAndGoes) {
  const auto before = static_cast<std::int64_t>(MemoryLimit::used_bytes());
  {
    const at::Tensor some = bytes(3 * kMebibyte);
    const at::Tensor view = some.slice(0, 5, 10);
    const auto with = static_cast<std::int64_t>(MemoryLimit::used_bytes()) - before;
    EXPECT_EQ(with, 3 * kMebibyte) << "what was asked for, whatever the allocator makes of it";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(some.data_ptr()) % c10::gAlignment, 0U);
  }
  EXPECT_EQ(static_cast<std::int64_t>(MemoryLimit::used_bytes()), before);
  *g_before = at::Tensor();  // was never counted
  EXPECT_EQ(static_cast<std::int64_t>(MemoryLimit::used_bytes()), before);
  at::Tensor grows = bytes(10);
  grows.resize_({2 * kMebibyte});
  EXPECT_GE(static_cast<std::int64_t>(MemoryLimit::used_bytes()), before + 2 * kMebibyte);
  grows = at::Tensor();
  EXPECT_EQ(static_cast<std::int64_t>(MemoryLimit::used_bytes()), before);
  EXPECT_EQ(bytes(0).numel(), 0);
}

TEST_F(Limit, KnowsThePeak) {
  MemoryLimit::reset_peak();
  const std::uint64_t before = MemoryLimit::used_bytes();
  EXPECT_EQ(MemoryLimit::peak_bytes(), before);
  { const at::Tensor some = bytes(4 * kMebibyte); }
  { const at::Tensor less = bytes(2 * kMebibyte); }
  EXPECT_GE(MemoryLimit::peak_bytes(), before + 4 * kMebibyte);
  EXPECT_LT(MemoryLimit::peak_bytes(), before + 5 * kMebibyte);
  EXPECT_EQ(MemoryLimit::used_bytes(), before);
  MemoryLimit::reset_peak();
  EXPECT_EQ(MemoryLimit::peak_bytes(), before);
}

std::string message_of_check() {
  try {
    MemoryLimit::check();
  } catch (const MemoryError& error) {
    EXPECT_TRUE(detail::is_out_of_memory(error));
    return error.what();
  }
  return {};
}

// LibTorch's operators may catch what an allocator throws: an excess is noted, not thrown.
TEST_F(Limit, NotesWhatDoesNotFit) {
  EXPECT_EQ(MemoryLimit::limit_bytes(), 0U);
  const std::uint64_t limit = MemoryLimit::used_bytes() + 8 * kMebibyte;
  MemoryLimit::set(limit);
  EXPECT_EQ(MemoryLimit::limit_bytes(), limit);
  const at::Tensor fits = bytes(5 * kMebibyte);
  EXPECT_FALSE(MemoryLimit::exceeded());
  EXPECT_NO_THROW(MemoryLimit::check());
  const std::uint64_t used = MemoryLimit::used_bytes();
  {
    const at::Tensor more = bytes(4 * kMebibyte);
    EXPECT_EQ(more.numel(), 4 * kMebibyte) << "is there all the same";
    const at::Tensor still_more = bytes(kMebibyte);
  }
  EXPECT_EQ(MemoryLimit::used_bytes(), used);
  EXPECT_TRUE(MemoryLimit::exceeded()) << "also when it is gone again";
  const std::string message = message_of_check();
  EXPECT_NE(message.find("4194304 bytes does not fit"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(limit)), std::string::npos) << message;
  EXPECT_EQ(message_of_check(), "") << "once";
  // What an operator makes inside counts, too; a smaller one still fits.
  EXPECT_NO_THROW(fits.to(at::kFloat));
  EXPECT_TRUE(MemoryLimit::forget());
  EXPECT_FALSE(MemoryLimit::forget());
  bytes(2 * kMebibyte);
  EXPECT_FALSE(MemoryLimit::exceeded());
  bytes(4 * kMebibyte);
  MemoryLimit::set(0);
  EXPECT_FALSE(MemoryLimit::exceeded());
  bytes(16 * kMebibyte);
  EXPECT_FALSE(MemoryLimit::exceeded());
}

TEST_F(Limit, RefusesWhatTheMachineHasNotGot) {
  const std::uint64_t used = MemoryLimit::used_bytes();
  MemoryLimit::set(used + 2 * kMebibyte, used + 8 * kMebibyte);
  EXPECT_EQ(MemoryLimit::most_bytes(), used + 8 * kMebibyte);
  const at::Tensor passes = bytes(5 * kMebibyte);
  EXPECT_THROW(bytes(4 * kMebibyte), MemoryError);
  EXPECT_EQ(MemoryLimit::used_bytes(), used + 5 * kMebibyte);
  EXPECT_TRUE(MemoryLimit::exceeded());
  // What LibTorch's mkldnn_matmul does when it is refused memory, and tells nobody.
  ASSERT_TRUE(at::globalContext().userEnabledMkldnn());
  at::globalContext().setUserEnabledMkldnn(false);
  const std::string message = message_of_check();
  EXPECT_NE(message.find("5242880 bytes does not fit"), std::string::npos) << "first " << message;
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn()) << "the kernels of before";
  // A user's own choice stays.
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_THROW(bytes(4 * kMebibyte), MemoryError);
  MemoryLimit::forget();
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  at::globalContext().setUserEnabledMkldnn(true);
}

TEST_F(Limit, CountsOnAllThreads) {
  const std::uint64_t before = MemoryLimit::used_bytes();
  std::vector<at::Tensor> made(4);
  std::vector<std::thread> threads;
  for (at::Tensor& each : made) {
    threads.emplace_back([&each] {
      for (int i = 0; i < 200; ++i) {
        each = bytes(1000 + i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GE(MemoryLimit::used_bytes(), before + 4000);
  made.clear();  // on another thread than they were made
  EXPECT_EQ(MemoryLimit::used_bytes(), before);
}

TEST(OutOfMemory, IsToldFromOtherErrors) {
  EXPECT_TRUE(detail::is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(detail::is_out_of_memory(MemoryError("x")));
  EXPECT_FALSE(detail::is_out_of_memory(ConfigError("x")));
  // LibTorch's own, for what no machine has.
  try {
    at::empty({std::int64_t{1} << 60}, at::kByte);
    ADD_FAILURE() << "an exabyte";
  } catch (const std::exception& error) {
    EXPECT_TRUE(detail::is_out_of_memory(error)) << error.what();
  }
  // The other way that LibTorch says it, in builds with mimalloc.
  EXPECT_TRUE(detail::is_out_of_memory(std::runtime_error(
      "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes.")));
  // An operator may make another error of it.
  MemoryLimit::set(0, MemoryLimit::used_bytes() + 1);
  EXPECT_THROW(bytes(kMebibyte), MemoryError);
  EXPECT_TRUE(detail::ran_out_of_memory(std::runtime_error("could not create a primitive")));
  EXPECT_FALSE(detail::ran_out_of_memory(std::runtime_error("could not create a primitive")));
  MemoryLimit::set(0);
}

// The copies of an elastic job's state are on this machine, too, and steps get what they leave. A
// linear layer of 1000 x 1000 with AdamW has 3 numbers of 4 bytes for each of its 1001000 elements.
TEST_F(Limit, LeavesRoomForTheCopiesOfAState) {
  constexpr std::int64_t kSide = 1000;
  constexpr double kStateBytes = 12.0 * static_cast<double>(kSide * kSide + kSide);
  const auto data = std::make_shared<testing::FormulaDataset>(
      8,
      std::vector<std::int64_t>{kSide},
      kSide,
      [](std::int64_t) { return 0; },
      [](std::int64_t, std::int64_t) { return 0.0F; });
  auto layer = std::make_shared<torch::nn::LinearImpl>(kSide, kSide);
  Trainable model{layer, [&](const TensorBatch& batch) { return layer->forward(batch.dense); }};
  model.task = std::make_shared<const Task>(data->shape());
  TrainSettings settings;
  settings.model = "mlp";
  settings.steps = 1;
  settings.batch = 4;
  settings.ranks = 1;
  settings = resolve(settings);
  const auto limit_with = [&](double copies) {
    detail::StepRunner runner(settings, model, data, init(), [](const std::string&) {});
    runner.leave_room(static_cast<int>(copies));
    runner.begin();
    return static_cast<double>(MemoryLimit::limit_bytes());
  };
  const auto all = static_cast<double>(total_memory_bytes());
  EXPECT_EQ(limit_with(1.01 * all / kStateBytes), 1) << "more than there is";
  // Others take and free memory meanwhile, but not that much of it.
  const auto free = static_cast<double>(available_memory_bytes());
  EXPECT_NEAR(limit_with(0), 0.9 * free, 0.15 * all);
  EXPECT_NEAR(limit_with(0.5 * free / kStateBytes), 0.45 * free, 0.15 * all);
}

}  // namespace
}  // namespace trireme::memory_limit_test
