// Logistic regression by Newton's method: each step needs the gradient and the curvature of all
// samples, which the ranks compute partition by partition. The result has the same bits for any
// number of them.
//
//   cmake --build build/release --target examples
//   trireme run -n 3 -- build/release/bin/10_map_reduce

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <trireme/trireme.h>

#include <torch/torch.h>

constexpr int kSamples = 20'000;
constexpr int kFeatures = 12;
constexpr int kPartitions = 16;  // whatever the number of ranks

struct Samples {
  torch::Tensor x, y;
};

// A partition of a data set that is far too large for one rank, in real life.
Samples partition(std::int64_t number) {
  const auto [begin, end] = trireme::even_range(kSamples, kPartitions, static_cast<int>(number));
  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  auto x = torch::randn({end - begin, kFeatures}, random, torch::kDouble);
  auto truth = torch::linspace(-1, 1, kFeatures, torch::kDouble);
  auto y = (torch::rand({end - begin}, random, torch::kDouble) < torch::sigmoid(x.mv(truth)));
  return {x, y.to(torch::kDouble)};
}

int main() {
  torch::set_num_threads(1);
  auto world = trireme::init();

  // Anything that is put together in another way than by adding: here, the largest feature.
  const auto largest = trireme::map_reduce(
      *world,
      kPartitions,
      [](std::int64_t number) { return partition(number).x.abs().max().item<double>(); },
      0.0,
      [](double& most, double next) { most = std::max(most, next); });

  auto weights = torch::zeros({kFeatures}, torch::kDouble);
  for (int step = 0; step < 6; ++step) {
    const auto sums = trireme::map_sum(*world, kPartitions, [&](std::int64_t number) {
      auto [x, y] = partition(number);
      auto p = torch::sigmoid(x.mv(weights));
      auto loss = torch::binary_cross_entropy(p, y, {}, at::Reduction::Sum);
      auto curvature = x.t().mm(x * (p * (1 - p)).unsqueeze(1));
      return std::vector<torch::Tensor>{loss, x.t().mv(p - y), curvature};
    });
    weights = weights - torch::linalg_solve(sums[2], sums[1]);
    if (world->rank() == 0) {
      std::printf("step %d  loss %.17g\n", step, sums[0].item<double>() / kSamples);
    }
  }
  if (world->rank() == 0) {
    std::printf("largest feature %.17g, first weight %.17g\n", largest, weights[0].item<double>());
  }
}
