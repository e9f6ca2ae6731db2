// A compressor of your own: gradients travel as one of -s, 0 and s for each element, in 2 bits, and
// what that leaves out is added to the next step's. The last line is the same with any number of
// ranks and at any stage, bit for bit.
//
//   cmake --build build/release --target examples
//   trireme run -n 2 -- build/release/bin/08_compressor

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <trireme/trireme.h>

#include <torch/torch.h>

struct Ternary final : trireme::Compressor {
  Ternary() : Compressor({.name = "ternary", .block = 256, .bytes = 4 + 64, .feedback = true}) {}

  void encode(std::span<const float> x,
              std::span<std::byte> to,
              const trireme::BlockKey&) const override {
    const bool finite = std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
    float most = finite ? 0 : NAN;  // what is not finite stays so
    for (float value : x)
      most = std::max(most, std::abs(value));
    std::ranges::fill(to, std::byte{0});
    std::memcpy(to.data(), &most, 4);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int code = !finite || x[i] > most / 2 ? 1 : x[i] < -most / 2 ? 2 : 0;
      to[4 + i / 4] |= static_cast<std::byte>(code << i % 4 * 2);
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> x,
              const trireme::BlockKey&) const override {
    float values[4] = {0, 0, 0, 0};
    std::memcpy(&values[1], from.data(), 4);
    values[2] = -values[1];
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = values[std::to_integer<int>(from[4 + i / 4] >> i % 4 * 2) & 3];
    }
  }
};

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto world = trireme::init();
  torch::nn::Sequential model(
      torch::nn::Linear(8, 128), torch::nn::Tanh(), torch::nn::Linear(128, 1));
  trireme::Engine engine(model,
                         trireme::Sgd({.lr = 0.05}),
                         {.zero = 2, .micro_batches = 4, .compress = std::make_shared<Ternary>()},
                         world);
  double loss = 0;
  for (int step = 0; step < 200; ++step) {
    for (auto m = world->rank(); m < engine.micro_batches(); m += world->size()) {
      auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(4 * step + m));
      auto x = torch::randn({64, 8}, random, torch::kFloat);
      auto error = torch::mse_loss(engine.forward(x), torch::tanh(x.sum(1, true)));
      engine.backward(error);
      engine.step();
      loss = m == 0 ? error.item<double>() : loss;
    }
  }
  auto use = engine.compression();
  auto scope = engine.gathered();
  if (world->rank() == 0) {
    std::printf("%lld bytes sent instead of %lld\n",
                static_cast<long long>(use.sent_bytes),
                static_cast<long long>(use.exact_bytes));
    std::printf("loss %.9f, first weight %a\n", loss, model->parameters()[0][0][0].item<double>());
  }
}
