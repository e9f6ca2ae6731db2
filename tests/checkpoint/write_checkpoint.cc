// Writes a checkpoint whose values follow from a formula, for format_test.py: element i of tensor t
// is 1000 * t + i. write_checkpoint FOLDER

#include <cstdio>
#include <vector>

#include "support/ranks.h"
#include "trireme/checkpoint/checkpoint_writer.h"

namespace {

using trireme::Dtype;
using trireme::StateTensor;

template <class T>
std::vector<T> values(std::size_t tensor, trireme::Range range) {
  std::vector<T> all;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    all.push_back(static_cast<T>(1000 * tensor + static_cast<std::size_t>(i)));
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_checkpoint FOLDER\n");
    return 2;
  }
  // 3 ranks, a prime number of elements, several blocks, an empty tensor, another memory order.
  const std::vector<StateTensor> tensors = {
      {"weight", "first \"quoted\" é", Dtype::kFloat32, {7, 100'003}, {}},
      {"optimizer.exp_avg", "second", Dtype::kFloat64, {3, 5}, {1, 3}},
      {"buffer", "empty", Dtype::kInt64, {0, 4}, {}},
      {"buffer", "count", Dtype::kInt64, {}, {}},
  };
  trireme::testing::spawn_world(3, [&](trireme::World& world) {
    trireme::StateView state;
    state.tensors = tensors;
    const auto part = [&](std::size_t t) {
      return trireme::even_range(tensors[t].numel(), 3, world.rank());
    };
    std::vector<float> first = values<float>(0, part(0));
    std::vector<double> second = values<double>(1, part(1));
    std::vector<std::int64_t> count = values<std::int64_t>(3, part(3));
    state.slices = {{0, part(0), reinterpret_cast<std::byte*>(first.data())},
                    {1, part(1), reinterpret_cast<std::byte*>(second.data())},
                    {3, part(3), reinterpret_cast<std::byte*>(count.data())}};
    const std::shared_ptr<trireme::Communicator> ranks(&world, [](auto*) {});
    trireme::CheckpointWriter writer(argv[1], ranks, {.wait = true});
    writer.save(42, state, {{"hello", "wörld\n"}});
  });
  return 0;
}
