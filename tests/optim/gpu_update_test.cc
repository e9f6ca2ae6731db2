// Every rule's pass on a GPU, against the host's: the same formula, the same bytes.

#include <memory>
#include <vector>

#include "support/gpu.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

using testing::Bytes;
using testing::OnGpu;

class GpuUpdate : public testing::GpuTest {};

// Everything an update touches, as bytes.
struct Memory {
  Memory(Dtype dtype, std::int64_t numel, std::size_t states)
      : master(testing::make_input(dtype, numel, 1)),
        gradient(testing::make_input(dtype, numel, 2)),
        moments(states, Bytes(master.size())),
        low(static_cast<std::size_t>(numel) * 2) {}
  Bytes master, gradient;
  std::vector<Bytes> moments;
  Bytes low;
};

struct Case {
  Dtype dtype = Dtype::kFloat32;
  bool low = false;
  Dtype low_dtype = Dtype::kBFloat16;
  std::int64_t numel = 0;
  std::size_t shift = 0;  // elements
};

void expect_host_update(const Optimizer& rule, const Case& c, const GradientTransform& transform) {
  const std::size_t states = rule.states({"", {c.numel}, {1}}).size();
  Memory memory(c.dtype, c.numel, states);
  const std::size_t shift = c.shift * dtype_bytes(c.dtype);
  const OnGpu master(memory.master, shift);
  const OnGpu gradient(memory.gradient, shift);
  const OnGpu low(memory.low, c.shift * 2);
  std::vector<std::unique_ptr<OnGpu>> moments;
  ParameterSlice here;
  ParameterSlice there;
  here.dtype = there.dtype = c.dtype;
  here.low_dtype = there.low_dtype = c.low_dtype;
  here.numel = there.numel = c.numel;
  here.master = memory.master.data();
  there.master = master.data();
  here.gradient = memory.gradient.data();
  there.gradient = gradient.data();
  here.low = c.low ? memory.low.data() : nullptr;
  there.low = c.low ? low.data() : nullptr;
  there.device = testing::kGpu;
  for (std::size_t k = 0; k < states; ++k) {
    moments.push_back(std::make_unique<OnGpu>(memory.moments[k], shift));
    here.states[k] = memory.moments[k].data();
    there.states[k] = moments[k]->data();
  }
  for (int step = 1; step <= 3; ++step) {
    here.step = there.step = step;
    rule.update(here, transform, 0.01 / step);
    rule.update(there, transform, 0.01 / step);
  }
  const std::string where =
      detail::concat("{} ({}), {}, {} elements, shifted by {}",
                     {rule.name(), rule.settings(), dtype_name(c.dtype), c.numel, c.shift});
  ASSERT_EQ(master.read(), memory.master) << where;
  ASSERT_EQ(low.read(), memory.low) << where;
  for (std::size_t k = 0; k < states; ++k) {
    ASSERT_EQ(moments[k]->read(), memory.moments[k]) << where << ", state " << k;
  }
}

void expect_host_updates(const Optimizer& rule) {
  const GradientTransform transforms[] = {
      {}, {.divisor = 3, .unscale = 0.5, .clip_factor = 0.7, .clip_value = 0.25}};
  for (const GradientTransform& transform : transforms) {
    for (const std::int64_t numel : {0, 1, 7, 1000, 4099}) {
      for (const std::size_t shift : {0, 1}) {
        expect_host_update(rule, {.numel = numel, .shift = shift}, transform);
        expect_host_update(rule, {.low = true, .numel = numel, .shift = shift}, transform);
        expect_host_update(
            rule,
            {.low = true, .low_dtype = Dtype::kFloat16, .numel = numel, .shift = shift},
            transform);
        expect_host_update(
            rule, {.dtype = Dtype::kFloat64, .numel = numel, .shift = shift}, transform);
      }
    }
  }
}

TEST_F(GpuUpdate, OfSgdHasTheHostsBytes) {
  expect_host_updates(Sgd({.lr = 0.1}));
  expect_host_updates(Sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01}));
  expect_host_updates(Sgd({.lr = 0.1, .momentum = 0.9, .l1 = 0.01, .nesterov = true}));
}

TEST_F(GpuUpdate, OfAdamHasTheHostsBytes) {
  expect_host_updates(Adam({.weight_decay = 0.01, .l1 = 0.001}));
  expect_host_updates(AdamW());
  expect_host_updates(AdamW({.amsgrad = true}));
}

TEST_F(GpuUpdate, OfTheOtherFormulasHasTheHostsBytes) {
  expect_host_updates(Adagrad({.lr_decay = 0.1, .weight_decay = 0.01}));
  expect_host_updates(Lion({.weight_decay = 0.1, .l1 = 0.01}));
  expect_host_updates(Rmsprop());
  expect_host_updates(Rmsprop({.momentum = 0.9, .centered = true}));
  expect_host_updates(Rmsprop({.momentum = 0.9}));
  expect_host_updates(Rmsprop({.centered = true}));
}

TEST_F(GpuUpdate, IsRefusedByNameWhereARuleNeedsMoreThanItsElements) {
  Memory memory(Dtype::kFloat32, 16, 2);
  ParameterSlice slice;
  slice.device = testing::kGpu;
  slice.numel = 16;
  slice.states = {memory.moments[0].data(), memory.moments[1].data()};
  std::vector<std::unique_ptr<Optimizer>> rules;
  rules.push_back(std::make_unique<Lamb>());
  rules.push_back(std::make_unique<Adafactor>());
  rules.push_back(std::make_unique<Muon>());
  for (const auto& rule : rules) {
    const std::string message =
        testing::message_of<ConfigError>([&] { rule->update(slice, {}, 0.1); });
    EXPECT_NE(message.find(rule->name() + ": has no kernels for cuda:0"), std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace trireme
