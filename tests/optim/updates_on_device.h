#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "support/gpu.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

// Every rule on a device, against the host: the same bytes. The device is a GPU, or a made-up one
// in its place (support/late_device.h).

namespace trireme::testing {

// Everything an update touches, as bytes.
struct UpdateMemory {
  UpdateMemory(Dtype dtype, std::int64_t numel, std::size_t states)
      : master(make_input(dtype, numel, 1)),
        gradient(make_input(dtype, numel, 2)),
        moments(states, Bytes(master.size())),
        low(static_cast<std::size_t>(numel) * 2) {}
  Bytes master, gradient;
  std::vector<Bytes> moments;
  Bytes low;
};

struct UpdateCase {
  Dtype dtype = Dtype::kFloat32;
  bool low = false;
  Dtype low_dtype = Dtype::kBFloat16;
  std::int64_t numel = 0;
  std::size_t shift = 0;  // elements
};

inline void expect_host_update(const Optimizer& rule,
                               const UpdateCase& c,
                               const GradientTransform& transform) {
  const std::size_t states = rule.states({"", {c.numel}, {1}}).size();
  UpdateMemory memory(c.dtype, c.numel, states);
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
  there.device = kGpu;
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

inline void expect_host_updates(const Optimizer& rule) {
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

// A parameter that is cut into slices, as ranks do it, in memory of the host or of a device.
class CutParameter {
 public:
  CutParameter(const Optimizer& rule, const ParameterInfo& info, Dtype dtype, Device device)
      : rule_(rule), device_(device) {
    whole_.info = info;
    whole_.dtype = dtype;
    const std::int64_t numel = info.numel();
    // States first: their vectors are not moved any more.
    for (const OptimizerState& state : rule.states(info)) {
      const bool divided = state.sizes.empty();
      divided_.push_back(divided);
      bytes_.emplace_back(static_cast<std::size_t>(divided ? numel : state.numel()) *
                          dtype_bytes(dtype));
    }
    bytes_.push_back(make_input(dtype, numel, 1));  // the master
    bytes_.emplace_back(static_cast<std::size_t>(numel) * 2);
    for (std::size_t k = 0; k < divided_.size(); ++k) {
      if (!divided_[k]) {
        whole_.states[k] = bytes_[k].data();
      }
    }
    if (!device.is_host()) {
      for (const Bytes& bytes : bytes_) {
        there_.push_back(std::make_unique<OnGpu>(bytes));
      }
    }
  }

  void update(std::int64_t step,
              const std::vector<std::int64_t>& cuts,
              const GradientTransform& transform) {
    const Bytes gradient =
        make_input(whole_.dtype, whole_.info.numel(), static_cast<int>(step) + 5);
    std::unique_ptr<OnGpu> gradient_there;
    if (!device_.is_host()) {
      gradient_there = std::make_unique<OnGpu>(gradient);
    }
    ParameterSlice all;
    all.dtype = whole_.dtype;
    all.device = device_;
    all.numel = whole_.info.numel();
    all.step = whole_.step = step;
    all.whole = &whole_;
    all.master = memory(divided_.size());
    all.low = whole_.dtype == Dtype::kFloat32 ? memory(divided_.size() + 1) : nullptr;
    all.gradient = gradient_there ? static_cast<const void*>(gradient_there->data())
                                  : static_cast<const void*>(gradient.data());
    for (std::size_t k = 0; k < divided_.size(); ++k) {
      all.states[k] = divided_[k] ? memory(k) : nullptr;
    }
    const auto for_slices = [&](const auto& call) {
      std::int64_t begin = 0;
      for (const std::int64_t end : cuts) {
        call(all.part(begin, end - begin));
        begin = end;
      }
    };
    whole_.measured.clear();
    for (const OptimizerPass& pass : rule_.passes()) {
      const std::size_t count = pass.count(whole_.info);
      const auto visible = device::Buffer::visible_to(device_, count * sizeof(double));
      auto* numbers = reinterpret_cast<double*>(visible.data());
      for_slices([&](const ParameterSlice& slice) { pass.measure(slice, transform, numbers); });
      finish(device::driver(device_).stream());
      whole_.measured.emplace_back(numbers, numbers + count);
      if (pass.then) {
        pass.then(whole_);
      }
    }
    for_slices([&](const ParameterSlice& slice) { rule_.update(slice, transform, 0.01); });
    finish(device::driver(device_).stream());
    rule_.finish(whole_);
  }

  // Every state, the master, and its 16-bit copy.
  std::vector<Bytes> read() const {
    std::vector<Bytes> all = bytes_;
    for (std::size_t k = 0; k < there_.size(); ++k) {
      if (k >= divided_.size() || divided_[k]) {
        all[k] = there_[k]->read();
      }
    }
    return all;
  }

 private:
  void* memory(std::size_t k) {
    return there_.empty() ? static_cast<void*>(bytes_[k].data())
                          : static_cast<void*>(there_[k]->data());
  }

  const Optimizer& rule_;
  Device device_;
  WholeParameter whole_;
  std::vector<bool> divided_;  // by state
  std::vector<Bytes> bytes_;
  std::vector<std::unique_ptr<OnGpu>> there_;
};

inline void expect_host_rule(const Optimizer& rule, const std::vector<ParameterInfo>& shapes) {
  const GradientTransform transforms[] = {
      {}, {.divisor = 3, .unscale = 0.5, .clip_factor = 0.7, .clip_value = 0.25}};
  for (const ParameterInfo& info : shapes) {
    const std::int64_t numel = info.numel();
    std::vector<std::vector<std::int64_t>> all_cuts = {{numel}};
    if (!rule.takes_whole_parameters() && numel > 2) {
      all_cuts.push_back({numel / 3 + 1, numel - 1, numel});
    }
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      for (const GradientTransform& transform : transforms) {
        CutParameter here(rule, info, dtype, {});
        for (int step = 1; step <= 3; ++step) {
          here.update(step, {numel}, transform);
        }
        for (const auto& cuts : all_cuts) {
          CutParameter there(rule, info, dtype, kGpu);
          for (int step = 1; step <= 3; ++step) {
            there.update(step, cuts, transform);
          }
          ASSERT_EQ(there.read(), here.read())
              << rule.name() << " (" << rule.settings() << "), " << info.name << ", "
              << dtype_name(dtype) << ", " << cuts.size() << " slices";
        }
      }
    }
  }
}

inline void expect_host_bytes_of_all_rules() {
  expect_host_updates(Sgd({.lr = 0.1}));
  expect_host_updates(Sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01}));
  expect_host_updates(Sgd({.lr = 0.1, .momentum = 0.9, .l1 = 0.01, .nesterov = true}));
  expect_host_updates(Adam({.weight_decay = 0.01, .l1 = 0.001}));
  expect_host_updates(AdamW());
  expect_host_updates(AdamW({.amsgrad = true}));
  expect_host_updates(Adagrad({.lr_decay = 0.1, .weight_decay = 0.01}));
  expect_host_updates(Lion({.weight_decay = 0.1, .l1 = 0.01}));
  expect_host_updates(Rmsprop());
  expect_host_updates(Rmsprop({.momentum = 0.9, .centered = true}));
  expect_host_updates(Rmsprop({.momentum = 0.9}));
  expect_host_updates(Rmsprop({.centered = true}));
}

inline void expect_host_bytes_of_lamb() {
  expect_host_updates(Lamb());
  expect_host_rule(Lamb({.l1 = 0.01}),
                   {{"vector", {4099}, {1}}, {"matrix", {61, 70}, {70, 1}}, {"one", {1}, {1}}});
}

// Matrices in every order of memory, lists of them, and vectors; long lines and short ones.
inline void expect_host_bytes_of_adafactor() {
  expect_host_rule(Adafactor({.clip = 0.7, .weight_decay = 0.1}),
                   {{"vector", {1031}, {1}},
                    {"number", {}, {}},
                    {"matrix", {97, 103}, {103, 1}},
                    {"columns first", {97, 103}, {1, 97}},
                    {"high", {2600, 3}, {3, 1}},
                    {"wide", {3, 2600}, {2600, 1}},
                    {"row", {1, 700}, {700, 1}},
                    {"column", {700, 1}, {1, 1}},
                    {"list", {2, 53, 89}, {53 * 89, 1, 53}},
                    {"kernels", {5, 3, 4, 7}, {84, 1, 21, 3}}});
}

inline void expect_host_bytes_of_muon() {
  const std::vector<ParameterInfo> shapes = {{"wide", {24, 41}, {41, 1}},
                                             {"high", {70, 24}, {24, 1}},
                                             {"columns first", {24, 70}, {1, 24}},
                                             {"row", {1, 9}, {9, 1}},
                                             {"column", {9, 1}, {1, 1}}};
  expect_host_rule(Muon({.lr = 0.02}), shapes);
  expect_host_rule(Muon({.nesterov = false}), shapes);
}

}  // namespace trireme::testing
