// Prints what our statistics make of some numbers, and the numbers, as JSON: for scipy_test.py.

#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "trireme/core/random.h"
#include "trireme/metrics/significance.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

Json json_of(const Difference& difference) {
  return {{"mean", difference.mean},
          {"low", difference.interval95.low},
          {"high", difference.interval95.high},
          {"p", difference.p_value}};
}

// Two sets of numbers of different spread, beside a common part.
struct Sets {
  std::vector<double> a;
  std::vector<double> b;
};
Sets sets_of(std::size_t size_a, std::size_t size_b, RandomStream& random) {
  Sets sets;
  for (std::size_t i = 0; i < std::max(size_a, size_b); ++i) {
    const double common = 3 * random.uniform();
    if (i < size_a) {
      sets.a.push_back(common + random.uniform());
    }
    if (i < size_b) {
      sets.b.push_back(common + 0.3 + 0.5 * random.uniform());
    }
  }
  return sets;
}

// Of the roots of mean squares; a root changes by what is below it, divided by twice the root.
Difference of_roots(const std::vector<double>& a, const std::vector<double>& b, int rounds) {
  const auto estimate = [&](std::span<const std::uint8_t> swapped) {
    const auto n = static_cast<double>(a.size());
    double square_a = 0;
    double square_b = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      square_a += std::pow(swapped[i] != 0 ? b[i] : a[i], 2) / n;
      square_b += std::pow(swapped[i] != 0 ? a[i] : b[i], 2) / n;
    }
    const double root_a = std::sqrt(square_a);
    const double root_b = std::sqrt(square_b);
    double squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double of_a = std::pow(swapped[i] != 0 ? b[i] : a[i], 2);
      const double of_b = std::pow(swapped[i] != 0 ? a[i] : b[i], 2);
      squares += std::pow((of_b - square_b) / (2 * root_b) - (of_a - square_a) / (2 * root_a), 2);
    }
    return Estimate{root_b - root_a, std::sqrt(squares / (n * (n - 1)))};
  };
  return permutation_test(std::ssize(a), estimate, rounds);
}

Json all() {
  RandomStream random(21);
  Json json = {{"paired", Json::array()},
               {"welch", Json::array()},
               {"mcnemar", Json::array()},
               {"means", Json::array()},
               {"quantiles", Json::array()},
               {"roots", Json::array()}};
  for (const std::size_t size : {2U, 3U, 5U, 17U, 400U}) {
    const Sets same = sets_of(size, size, random);
    json["paired"].push_back(
        {{"a", same.a}, {"b", same.b}, {"found", json_of(paired_t_test(same.a, same.b))}});
    const Sets other = sets_of(size, size + 3, random);
    json["welch"].push_back(
        {{"a", other.a}, {"b", other.b}, {"found", json_of(welch_t_test(other.a, other.b))}});
    const MeanEstimate mean = mean_of(other.a);
    json["means"].push_back({{"values", other.a},
                             {"mean", mean.mean},
                             {"low", mean.interval95.low},
                             {"high", mean.interval95.high}});
    std::vector<std::uint8_t> hits_a;
    std::vector<std::uint8_t> hits_b;
    for (std::size_t i = 0; i < size; ++i) {
      hits_a.push_back(random.below(4) > 0 ? 1 : 0);
      hits_b.push_back(random.below(8) > 0 ? 1 : 0);
    }
    json["mcnemar"].push_back(
        {{"a", hits_a}, {"b", hits_b}, {"found", json_of(mcnemar_test(hits_a, hits_b))}});
  }
  constexpr int kRounds = 20'000;
  for (const std::size_t size : {8U, 40U, 400U}) {
    Sets errors = sets_of(size, size, random);
    for (std::size_t i = 0; i < size; ++i) {
      errors.a[i] -= 2;
      errors.b[i] -= 2.1;
    }
    json["roots"].push_back({{"a", errors.a},
                             {"b", errors.b},
                             {"rounds", kRounds},
                             {"found", json_of(of_roots(errors.a, errors.b, kRounds))}});
  }
  for (const double degrees : {1.0, 1.5, 4.0, 30.0, 1e4}) {
    for (const double share : {1e-6, 0.025, 0.4, 0.9, 0.975, 0.9999}) {
      json["quantiles"].push_back({degrees, share, student_quantile(share, degrees)});
    }
  }
  return json;
}

}  // namespace
}  // namespace trireme

int main() {
  std::printf("%s\n", trireme::all().dump().c_str());
}
