// Trains your own model on your own data with Trireme's training loop: sampling, feeding,
// evaluation, any stage, any number of ranks, the same losses to the last digit.
//
//   cmake --build build/release --target examples
//   trireme run -n 2 -- build/release/bin/05_train

#include <cmath>
#include <cstdio>

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace nn = torch::nn;

// Points of two spirals, generated on demand; a real dataset would map and read a file here.
class Spirals final : public trireme::Dataset {
 public:
  explicit Spirals(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  const trireme::SampleShape& shape() const override { return shape_; }
  std::int64_t label(std::int64_t sample) const override { return sample % 2; }

  void read(std::span<const std::int64_t> samples, trireme::Batch& batch) const override {
    batch.samples = static_cast<std::int64_t>(samples.size());
    batch.ids.assign(samples.begin(), samples.end());
    batch.dense.clear();
    batch.labels.clear();
    for (const std::int64_t sample : samples) {
      trireme::RandomStream random(trireme::mix(7, static_cast<std::uint64_t>(sample)));
      const double t = 3 * random.uniform() + 0.2;
      const double angle = 2 * t + 3.14159 * static_cast<double>(label(sample));
      batch.dense.push_back(static_cast<float>(t * std::cos(angle) + 0.1 * random.uniform()));
      batch.dense.push_back(static_cast<float>(t * std::sin(angle) + 0.1 * random.uniform()));
      batch.labels.push_back(label(sample));
    }
  }

 private:
  std::int64_t size_;
  trireme::SampleShape shape_{.kind = trireme::SampleKind::kDense, .dense = {2}, .classes = 2};
};

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto world = trireme::init();
  nn::Sequential net(
      nn::Linear(2, 256), nn::Tanh(), nn::Linear(256, 256), nn::Tanh(), nn::Linear(256, 2));

  const auto settings = trireme::resolve({.model = "mlp",
                                          .epochs = 20,
                                          .batch = 96,
                                          .micro_batch = "16",
                                          .lr = 3e-3,
                                          .ranks = world->size(),
                                          .zero = 3});
  const trireme::Trainable model{net.ptr(), [net](const trireme::TensorBatch& batch) mutable {
                                   return net->forward(batch.dense);
                                 }};
  // A part of the samples is held out for evaluation.
  const auto data = trireme::hold_out(std::make_shared<Spirals>(3000), 0.2, /*seed=*/1);
  const auto result = trireme::train(settings, model, data, world);
  if (world->rank() == 0) {
    std::printf("%lld steps, loss %.17g, evaluation: %s\n",
                static_cast<long long>(result.steps),
                result.loss,
                result.evaluation.to_string().c_str());
  }
}
