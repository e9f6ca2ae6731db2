#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/tensor/shared_tensor.h"
#include "trireme/tensor/span.h"

namespace trireme::tensor_test {
namespace {

using testing::message_of;

TEST(TensorSpan, ShowsTheTensorsMemory) {
  const auto tensor = torch::arange(6, torch::kFloat64);
  const Span span(tensor);
  EXPECT_EQ(static_cast<void*>(span.bytes()), tensor.data_ptr());
  EXPECT_EQ(span.numel(), 6);
  EXPECT_EQ(span.dtype(), Dtype::kFloat64);
}

TEST(TensorSpan, KnowsEveryDtype) {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    const auto tensor = torch::zeros({3}, scalar_type_of(static_cast<Dtype>(dtype)));
    EXPECT_EQ(Span(tensor).dtype(), static_cast<Dtype>(dtype));
    EXPECT_EQ(Span(tensor).size_bytes(), tensor.nbytes());
  }
}

TEST(TensorSpan, RefusesWhatCannotBeCommunicated) {
  const auto refuse = [](const at::Tensor& tensor) {
    return message_of<ConfigError>([&] { static_cast<void>(Span(tensor)); });
  };
  EXPECT_NE(refuse(torch::zeros({4, 4}).t()).find("not contiguous"), std::string::npos);
  EXPECT_NE(refuse(torch::zeros({4, 4}).t()).find("[4, 4]"), std::string::npos);
  EXPECT_NE(refuse(torch::zeros({4}, torch::kMeta)).find("meta"), std::string::npos);
  EXPECT_NE(refuse(torch::zeros({4}, torch::kComplexFloat)).find("ComplexFloat"),
            std::string::npos);
  EXPECT_NE(refuse(torch::zeros({4}).to_sparse()).find("to_dense"), std::string::npos);
  EXPECT_NE(refuse(at::Tensor()).find("undefined"), std::string::npos);
}

TEST(Tensors, GoThroughCollectives) {
  testing::fork_world(3, [](World& world) {
    auto tensor = torch::full({2, 5}, static_cast<float>(world.rank() + 1));
    world.all_reduce(tensor).wait();
    EXPECT_TRUE(torch::equal(tensor, torch::full({2, 5}, 6.0F)));

    auto shared = shared_tensor(world, {100, 100}, torch::kBFloat16);
    EXPECT_EQ(shared.sum().item<float>(), 0);
    shared.fill_(world.rank());
    world.all_reduce(shared, ReduceOp::kMax).wait();
    EXPECT_TRUE(torch::equal(shared, torch::full({100, 100}, 2, torch::kBFloat16)));

    auto empty = torch::empty({0});
    world.all_reduce(empty).wait();
  });
}

TEST(Tensors, LiveAsLongAsTheOperationThatUsesThem) {
  testing::fork_world(2, [](World& world) {
    Work work;
    {
      auto tensor = torch::ones({300'000});
      work = world.all_reduce(tensor);
    }
    work.wait();
    auto view = [&] { return shared_tensor(world, {1000})[999]; }();  // keeps the whole alive
    view.fill_(1);
    EXPECT_EQ(view.item<float>(), 1);
  });
}

}  // namespace
}  // namespace trireme::tensor_test
