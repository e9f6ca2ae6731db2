#include "trireme/optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// One parameter with everything its updates touch.
template <class T>
struct Parameter {
  std::vector<T> value, gradient, first, second, third;
  std::vector<std::uint16_t> low;

  Parameter(std::size_t numel, unsigned seed)
      : value(numel), gradient(numel), first(numel), second(numel), third(numel), low(numel) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < numel; ++i) {
      value[i] = static_cast<T>(normal(random));
    }
    next_gradient(seed);
  }
  void next_gradient(unsigned seed) {
    std::mt19937 random(seed * 7919 + 1);
    std::normal_distribution<double> normal;
    for (T& g : gradient) {
      g = static_cast<T>(normal(random) * 0.1);
    }
  }
  ParameterSlice slice(std::int64_t begin, std::int64_t end, std::int64_t step) {
    ParameterSlice part;
    part.dtype = DtypeOf<T>::kValue;
    part.master = value.data() + begin;
    part.gradient = gradient.data() + begin;
    part.states = {first.data() + begin, second.data() + begin, third.data() + begin};
    part.numel = end - begin;
    part.step = step;
    part.begin = begin;
    return part;
  }
};

// The rules as their papers have them, one element at a time in long double.
struct Element {
  long double p = 0, first = 0, second = 0, third = 0;
};
using Reference = std::function<void(Element& e, long double g, int t)>;

void expect_close_to(const Optimizer& rule, const Reference& reference) {
  constexpr int kNumel = 103;
  Parameter<float> parameter(kNumel, 1);
  Parameter<double> precise(kNumel, 1);
  std::vector<Element> elements(kNumel);
  for (int i = 0; i < kNumel; ++i) {
    const auto at = static_cast<std::size_t>(i);
    precise.value[at] = parameter.value[at];
    elements[at].p = parameter.value[at];
  }
  for (int t = 1; t <= 25; ++t) {
    parameter.next_gradient(static_cast<unsigned>(t));
    for (std::size_t i = 0; i < kNumel; ++i) {
      precise.gradient[i] = parameter.gradient[i];
      reference(elements[i], parameter.gradient[i], t);
    }
    rule.update(parameter.slice(0, kNumel, t), {}, rule.learning_rate());
    rule.update(precise.slice(0, kNumel, t), {}, rule.learning_rate());
  }
  for (std::size_t i = 0; i < kNumel; ++i) {
    EXPECT_NEAR(parameter.value[i], static_cast<double>(elements[i].p), 2e-5)
        << rule.name() << " " << i;
    EXPECT_NEAR(precise.value[i], static_cast<double>(elements[i].p), 1e-12)
        << rule.name() << " " << i;
  }
}

long double sign(long double x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

TEST(Optimizer, SgdFollowsItsFormula) {
  expect_close_to(Sgd({.lr = 0.1}), [](Element& e, long double g, int) { e.p -= 0.1L * g; });
  const auto momentum = [](bool nesterov) {
    return [nesterov](Element& e, long double g, int t) {
      g += 0.01L * e.p + 0.001L * sign(e.p);
      e.first = t == 1 ? g : 0.9L * e.first + g;
      e.p -= 0.1L * (nesterov ? g + 0.9L * e.first : e.first);
    };
  };
  expect_close_to(Sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .l1 = 0.001}),
                  momentum(false));
  expect_close_to(
      Sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .l1 = 0.001, .nesterov = true}),
      momentum(true));
}

TEST(Optimizer, AdamAndAdamWFollowTheirFormulas) {
  const auto adam = [](long double decay, bool decoupled) {
    return [=](Element& e, long double g, int t) {
      if (decoupled) {
        e.p -= 0.01L * decay * e.p;
      } else {
        g += decay * e.p;
      }
      e.first = 0.9L * e.first + 0.1L * g;
      e.second = 0.999L * e.second + 0.001L * g * g;
      const long double m = e.first / (1 - std::pow(0.9L, t));
      const long double v = e.second / (1 - std::pow(0.999L, t));
      e.p -= 0.01L * m / (std::sqrt(v) + 1e-8L);
    };
  };
  expect_close_to(Adam({.lr = 0.01, .weight_decay = 0.1}), adam(0.1L, false));
  expect_close_to(AdamW({.lr = 0.01, .weight_decay = 0.1}), adam(0.1L, true));
}

TEST(Optimizer, AmsgradKeepsTheLargestSecondMoment) {
  expect_close_to(Adam({.lr = 0.01, .beta2 = 0.5, .amsgrad = true}),
                  [](Element& e, long double g, int t) {
                    e.first = 0.9L * e.first + 0.1L * g;
                    e.second = 0.5L * e.second + 0.5L * g * g;
                    e.third = std::max(e.third, e.second);
                    const long double m = e.first / (1 - std::pow(0.9L, t));
                    const long double v = e.third / (1 - std::pow(0.5L, t));
                    e.p -= 0.01L * m / (std::sqrt(v) + 1e-8L);
                  });
}

TEST(Optimizer, RmspropFollowsItsFormula) {
  for (const bool centered : {false, true}) {
    for (const bool momentum : {false, true}) {
      expect_close_to(Rmsprop({.lr = 0.001,
                               .alpha = 0.9,
                               .eps = 1e-4,
                               .weight_decay = 0.01,
                               .momentum = momentum ? 0.8 : 0,
                               .centered = centered}),
                      [=](Element& e, long double g, int) {
                        g += 0.01L * e.p;
                        e.first = 0.9L * e.first + 0.1L * g * g;
                        e.third = 0.9L * e.third + 0.1L * g;
                        const long double variance =
                            centered ? e.first - e.third * e.third : e.first;
                        const long double step = g / (std::sqrt(variance) + 1e-4L);
                        e.second = 0.8L * e.second + step;
                        e.p -= 0.001L * (momentum ? e.second : step);
                      });
    }
  }
}

TEST(Optimizer, AdagradFollowsItsFormula) {
  expect_close_to(Adagrad({.lr = 0.05, .lr_decay = 0.1}), [](Element& e, long double g, int t) {
    e.first += g * g;
    e.p -= 0.05L / (1 + (t - 1) * 0.1L) * g / (std::sqrt(e.first) + 1e-10L);
  });
}

TEST(Optimizer, LionFollowsItsFormula) {
  expect_close_to(Lion({.lr = 0.001, .weight_decay = 0.1}), [](Element& e, long double g, int) {
    const long double direction = sign(0.9L * e.first + 0.1L * g);
    e.first = 0.99L * e.first + 0.01L * g;
    e.p = e.p - 0.001L * 0.1L * e.p - 0.001L * direction;
  });
}

TEST(Optimizer, LambFollowsItsFormula) {
  constexpr int kNumel = 5000;  // several blocks
  const Lamb rule({.lr = 0.01});
  Parameter<float> rounded(kNumel, 3);
  Parameter<double> parameter(kNumel, 3);
  std::vector<Element> elements(kNumel);
  for (std::size_t i = 0; i < kNumel; ++i) {
    elements[i].p = parameter.value[i] = rounded.value[i];
  }
  for (int t = 1; t <= 10; ++t) {
    rounded.next_gradient(static_cast<unsigned>(t));
    parameter.gradient.assign(rounded.gradient.begin(), rounded.gradient.end());
    std::vector<long double> direction(kNumel);
    long double parameter_norm = 0;
    long double direction_norm = 0;
    for (std::size_t i = 0; i < kNumel; ++i) {
      Element& e = elements[i];
      const long double g = parameter.gradient[i];
      e.first = 0.9L * e.first + 0.1L * g;
      e.second = 0.999L * e.second + 0.001L * g * g;
      direction[i] = e.first / (1 - std::pow(0.9L, t)) /
                         (std::sqrt(e.second / (1 - std::pow(0.999L, t))) + 1e-6L) +
                     0.01L * e.p;
      parameter_norm += e.p * e.p;
      direction_norm += direction[i] * direction[i];
    }
    const long double ratio = std::sqrt(parameter_norm) / std::sqrt(direction_norm);
    for (std::size_t i = 0; i < kNumel; ++i) {
      elements[i].p -= 0.01L * ratio * direction[i];
    }
    rule.update(parameter.slice(0, kNumel, t), {}, 0.01);
    rule.update(rounded.slice(0, kNumel, t), {}, 0.01);
  }
  for (std::size_t i = 0; i < kNumel; ++i) {
    ASSERT_NEAR(parameter.value[i], static_cast<double>(elements[i].p), 1e-12) << i;
    ASSERT_NEAR(rounded.value[i], static_cast<double>(elements[i].p), 2e-5) << i;
  }
}

std::vector<std::unique_ptr<Optimizer>> all_rules() {
  std::vector<std::unique_ptr<Optimizer>> rules;
  rules.push_back(std::make_unique<Sgd>(SgdOptions{.lr = 0.1}));
  rules.push_back(std::make_unique<Sgd>(
      SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}));
  rules.push_back(std::make_unique<Adam>(AdamOptions{.weight_decay = 0.01, .l1 = 0.001}));
  rules.push_back(std::make_unique<AdamW>());
  rules.push_back(std::make_unique<Adagrad>());
  rules.push_back(std::make_unique<Lion>(LionOptions{.weight_decay = 0.1}));
  rules.push_back(std::make_unique<AdamW>(AdamWOptions{.amsgrad = true}));
  rules.push_back(std::make_unique<Rmsprop>(
      RmspropOptions{.weight_decay = 0.01, .momentum = 0.9, .centered = true}));
  return rules;
}

TEST(Optimizer, GivesTheSameBitsWhateverTheSplit) {
  constexpr std::int64_t kNumel = 1031;
  const GradientTransform transform{
      .divisor = 12, .unscale = 0.25, .clip_factor = 0.3, .clip_value = 0.01};
  std::mt19937 random(5);
  for (const auto& rule : all_rules()) {
    Parameter<float> whole(kNumel, 9);
    Parameter<float> split(kNumel, 9);
    for (int t = 1; t <= 6; ++t) {
      whole.next_gradient(static_cast<unsigned>(t));
      split.next_gradient(static_cast<unsigned>(t));
      rule->update(whole.slice(0, kNumel, t), transform, 0.01);
      for (std::int64_t begin = 0; begin < kNumel;) {
        const std::int64_t end =
            std::min<std::int64_t>(kNumel, begin + 1 + static_cast<std::int64_t>(random() % 40));
        rule->update(split.slice(begin, end, t), transform, 0.01);
        begin = end;
      }
    }
    EXPECT_EQ(std::memcmp(whole.value.data(), split.value.data(), kNumel * sizeof(float)), 0)
        << rule->name();
    EXPECT_EQ(std::memcmp(whole.first.data(), split.first.data(), kNumel * sizeof(float)), 0)
        << rule->name();
    EXPECT_EQ(std::memcmp(whole.second.data(), split.second.data(), kNumel * sizeof(float)), 0)
        << rule->name();
    EXPECT_EQ(std::memcmp(whole.third.data(), split.third.data(), kNumel * sizeof(float)), 0)
        << rule->name();
  }
}

using Cuts = std::vector<std::pair<std::int64_t, std::int64_t>>;

Cuts random_cuts(std::int64_t numel, std::mt19937& random) {
  Cuts cuts;
  for (std::int64_t begin = 0; begin < numel;) {
    const std::int64_t end =
        std::min<std::int64_t>(numel, begin + 1 + static_cast<std::int64_t>(random() % 3000));
    cuts.emplace_back(begin, end);
    begin = end;
  }
  std::shuffle(cuts.begin(), cuts.end(), random);
  return cuts;
}

// An update of a parameter that is cut into slices, as ranks do it: all passes, then the slices.
void update_cut(const Optimizer& rule,
                Parameter<float>& parameter,
                WholeParameter& whole,
                const Cuts& cuts) {
  whole.measured.clear();
  const auto slice = [&](const std::pair<std::int64_t, std::int64_t>& cut) {
    ParameterSlice part = parameter.slice(cut.first, cut.second, whole.step);
    part.whole = &whole;
    return part;
  };
  for (const OptimizerPass& pass : rule.passes()) {
    std::vector<double> numbers(pass.count(whole.info));
    for (const auto& cut : cuts) {
      std::vector<double> found(numbers.size());
      pass.measure(slice(cut), {}, found.data());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = pass.combine == OptimizerPass::Combine::kLargest
                         ? std::max(numbers[i], found[i])
                         : numbers[i] + found[i];
      }
    }
    whole.measured.push_back(numbers);
    if (pass.then) {
      pass.then(whole);
    }
  }
  for (const auto& cut : cuts) {
    rule.update(slice(cut), {}, 0.01);
  }
  rule.finish(whole);
}

TEST(Optimizer, LambGivesTheSameBitsOverShardsInAnyOrder) {
  constexpr std::int64_t kNumel = 10'007;
  const Lamb rule;
  Parameter<float> whole(kNumel, 4);
  Parameter<float> sharded(kNumel, 4);
  std::mt19937 random(6);
  WholeParameter known{{"p", {kNumel}, {1}}};
  for (int t = 1; t <= 5; ++t) {
    known.step = t;
    whole.next_gradient(static_cast<unsigned>(t));
    sharded.next_gradient(static_cast<unsigned>(t));
    rule.update(whole.slice(0, kNumel, t), {}, 0.01);
    update_cut(rule, sharded, known, random_cuts(kNumel, random));
    ASSERT_EQ(std::memcmp(whole.value.data(), sharded.value.data(), kNumel * sizeof(float)), 0)
        << t;
  }
}

// Two matrices of 53 x 89 in memory that has the columns together, a matrix and a vector.
TEST(Optimizer, AdafactorGivesTheSameBitsOverShardsInAnyOrder) {
  const Adafactor rule({.weight_decay = 0.1});
  const ParameterInfo kShapes[] = {{"list", {2, 53, 89}, {53 * 89, 1, 53}},
                                   {"matrix", {97, 103}, {103, 1}},
                                   {"vector", {9973}, {1}}};
  std::mt19937 random(6);
  for (const ParameterInfo& info : kShapes) {
    const std::int64_t numel = info.numel();
    const auto size = static_cast<std::size_t>(numel);
    Parameter<float> one(size, 4);
    Parameter<float> other(size, 4);
    std::vector<float> rows[2];
    std::vector<float> columns[2];
    WholeParameter known[2];
    for (std::size_t i = 0; i < 2; ++i) {
      known[i].info = info;
      rows[i].resize(200);
      columns[i].resize(200);
      known[i].states = {rows[i].data(), columns[i].data()};
    }
    for (int t = 1; t <= 5; ++t) {
      known[0].step = known[1].step = t;
      one.next_gradient(static_cast<unsigned>(t));
      other.next_gradient(static_cast<unsigned>(t));
      update_cut(rule, one, known[0], {{0, numel}});
      update_cut(rule, other, known[1], random_cuts(numel, random));
      ASSERT_EQ(std::memcmp(one.value.data(), other.value.data(), size * sizeof(float)), 0)
          << info.name << " " << t;
    }
    EXPECT_EQ(rows[0], rows[1]);
    EXPECT_EQ(columns[0], columns[1]);
    EXPECT_EQ(one.first, other.first);
    EXPECT_EQ(rows[0][0] != 0, info.sizes.size() > 1) << info.name;
  }
}

TEST(Optimizer, WritesTheLowPrecisionCopyRoundedFromTheMaster) {
  constexpr std::int64_t kNumel = 77;
  for (const auto& rule : all_rules()) {
    for (const Dtype low : {Dtype::kBFloat16, Dtype::kFloat16}) {
      Parameter<float> parameter(kNumel, 8);
      ParameterSlice slice = parameter.slice(0, kNumel, 1);
      slice.low = parameter.low.data();
      slice.low_dtype = low;
      rule->update(slice, {}, 0.01);
      for (std::size_t i = 0; i < kNumel; ++i) {
        ASSERT_EQ(parameter.low[i],
                  low == Dtype::kBFloat16 ? testing::nearest_bfloat16(parameter.value[i])
                                          : testing::nearest_half(parameter.value[i]))
            << rule->name();
      }
    }
  }
}

TEST(Optimizer, TransformsGradientsInOrder) {
  Parameter<float> parameter(40, 2);
  std::vector<float> expected = parameter.value;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    float g = parameter.gradient[i] / 3.0F;
    g = g * static_cast<float>(0.5 * 0.25);
    g = g > 0.002F ? 0.002F : g < -0.002F ? -0.002F : g;
    expected[i] = expected[i] - 1.0F * g;
  }
  Sgd({.lr = 1}).update(parameter.slice(0, 40, 1),
                        {.divisor = 3, .unscale = 0.5, .clip_factor = 0.25, .clip_value = 0.002},
                        1);
  EXPECT_EQ(parameter.value, expected);
}

TEST(Optimizer, RefusesSettingsThatMakeNoSense) {
  EXPECT_THROW(Lamb({.beta1 = 0.9, .beta2 = 0.8}), ConfigError) << "its direction has no bound";
  EXPECT_NO_THROW(Lamb({.beta1 = 0.9, .beta2 = 0.81 + 1e-9}));
  using testing::message_of;
  EXPECT_NE(message_of<ConfigError>([] { AdamW({.lr = -1}); }).find("lr"), std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] { Adam({.beta1 = 1}); }).find("beta1"), std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] { Sgd({.nesterov = true}); }).find("nesterov"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] { Lamb({.eps = 0}); }).find("eps"), std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] { Rmsprop({.alpha = 1}); }).find("alpha"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] { Adafactor({.clip = 0}); }).find("clip"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] {
              Adafactor({.beta2_decay = 0.8});
            }).find("beta2_decay cannot be above 0, found 0.8"),
            std::string::npos)
      << "torch refuses it, too";
  EXPECT_NE(message_of<ConfigError>([] { AdamW({.eps = NAN}); }).find("eps"), std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] {
              Parameter<float> parameter(3, 1);
              ParameterSlice slice = parameter.slice(0, 3, 0);
              AdamW().update(slice, {}, 0.1);
            }).find("count from 1"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([] {
              Parameter<float> parameter(3, 1);
              ParameterSlice slice = parameter.slice(0, 3, 1);
              slice.states = {};
              AdamW().update(slice, {}, 0.1);
            }).find("2 states"),
            std::string::npos);
}

// --- by name

TEST(OptimizerTable, MakesEveryRuleWithItsSettings) {
  for (const RuleInfo& info : optimizer_rules()) {
    const auto rule = make_optimizer(info.name, {info.settings.begin(), info.settings.end()});
    EXPECT_EQ(rule->name(), info.name);
    EXPECT_EQ(rule->learning_rate(), info.usual("lr"));
    for (const auto& [name, value] : info.settings) {
      EXPECT_NE(rule->settings().find(name + " " + detail::exact_text(value)), std::string::npos)
          << rule->settings();
    }
  }
  EXPECT_EQ(make_optimizer("adamw", {{"lr", 0.5}, {"amsgrad", 1}})->settings(),
            AdamW({.lr = 0.5, .amsgrad = true}).settings());
  EXPECT_EQ(make_optimizer("sgd", {{"momentum", 0.9}})->states({}).size(), 1U);
}

TEST(OptimizerTable, RefusesWhatThereIsNot) {
  using testing::message_of;
  EXPECT_NE(message_of<ConfigError>([] { make_optimizer("adamx"); }).find("adamw, adam, sgd"),
            std::string::npos);
  const std::string message = message_of<ConfigError>([] { make_optimizer("sgd", {{"eps", 1}}); });
  EXPECT_NE(message.find("sgd has no eps; its settings are lr, momentum"), std::string::npos)
      << message;
  EXPECT_THROW(make_optimizer("adam", {{"beta1", 2}}), ConfigError);
  for (const double value : {0.5, -1.0, 2.0, static_cast<double>(NAN)}) {
    EXPECT_NE(message_of<ConfigError>([&] {
                make_optimizer("adam", {{"amsgrad", value}});
              }).find("adam: amsgrad is a switch, true (1) or false (0), found "),
              std::string::npos)
        << value;
  }
}

}  // namespace
}  // namespace trireme
