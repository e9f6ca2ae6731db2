#include "trireme/parallel/data_parallel.h"

#include <gtest/gtest.h>

#include <torch/optim.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"

namespace trireme::data_parallel_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
  NetImpl() {
    first = register_module("first", nn::Linear(6, 10));
    second = register_module("second", nn::Linear(10, 2));
    unused = register_module("unused", nn::Linear(2, 2));
  }
  Tensor forward(const Tensor& x) { return second->forward(torch::tanh(first->forward(x))); }
};
TORCH_MODULE(Net);

Tensor input_of(int step, int who) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + who));
  return torch::randn({4, 6}, generator, torch::kFloat);
}

// Two ranks with a torch optimizer of their own and one process that averages by hand.
TEST(DataParallel, WorksWithTheUsersOwnOptimizer) {
  for (const int accumulate : {1, 3}) {
    testing::fork_world(2, [&](World& base) {
      const std::shared_ptr<World> world(&base, [](World*) {});
      at::set_num_threads(1);
      torch::manual_seed(world->rank());  // rank 0's parameters count
      Net model;
      DataParallel parallel(model, {.bucket_bytes = 100}, world);
      torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01));
      torch::manual_seed(0);
      Net reference;
      torch::optim::Adam plain(reference->parameters(), torch::optim::AdamOptions(0.01));
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        for (int k = 0; k < accumulate; ++k) {
          const auto loss = [&] {
            return parallel.forward(input_of(10 * step + k, world->rank())).pow(2).mean();
          };
          if (k + 1 < accumulate) {
            const auto scope = parallel.no_sync();
            parallel.backward(loss());
          } else {
            parallel.backward(loss());
          }
        }
        EXPECT_FALSE(model->unused->weight.grad().defined());
        optimizer.step();

        plain.zero_grad();
        std::vector<Tensor> sums;
        for (int rank = 0; rank < 2; ++rank) {
          for (int k = 0; k < accumulate; ++k) {
            reference->forward(input_of(10 * step + k, rank)).pow(2).mean().backward();
          }
          std::size_t i = 0;
          for (auto& parameter : reference->parameters()) {
            if (parameter.grad().defined()) {
              if (rank == 0) {
                sums.push_back(parameter.grad().clone());
                parameter.mutable_grad().reset();
              } else {
                parameter.mutable_grad() = (sums[i++] + parameter.grad()) / 2;
              }
            }
          }
        }
        plain.step();
      }
      for (std::size_t i = 0; i < model->parameters().size(); ++i) {
        EXPECT_TRUE(torch::equal(model->parameters()[i], reference->parameters()[i])) << i;
      }
      model->parameters()[0].mutable_grad() = torch::ones({10, 6});
      const std::string message = testing::message_of<ConfigError>(
          [&] { parallel.backward(parallel.forward(input_of(0, 0)).sum()); });
      EXPECT_NE(message.find("zero_grad"), std::string::npos) << message;
      EXPECT_NE(message.find("first.weight"), std::string::npos) << message;
    });
  }
}

}  // namespace
}  // namespace trireme::data_parallel_test
