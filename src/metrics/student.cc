// Student's t distribution. With T of v degrees, P(|T| >= t) = I_x(v/2, 1/2) at x = v / (v + t^2),
// the regularised incomplete beta function.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "trireme/core/error.h"
#include "trireme/metrics/significance.h"

namespace trireme {
namespace {

// From here on the distribution is the normal one to the last bit, for every t whose tails are
// numbers at all: they differ by a factor of about 1 + t^4 / (4 v).
constexpr double kNormalDegrees = 1e22;
// Far more than either expansion takes where it is used (about 80).
constexpr int kMostTerms = 10'000;

// ln(gamma(a + 1/2) / gamma(a)). Differences of lgamma lose as many digits as lgamma(a) has before
// its point; this keeps them: the ratio climbs to a large a, where its asymptotic series in
// w = a - 1/4 has even powers only, with coefficients -2 E_k / (k 4^(k+1)) from Euler's numbers
// E_k.
double log_gamma_ratio(double a) {
  double climbed = 1;
  while (a < 20) {
    climbed *= a / (a + 0.5);
    a += 1;
  }
  const double w = a - 0.25;
  const double u = 1 / (w * w);
  const double series =
      u * (1.0 / 64 + u * (-5.0 / 2048 +
                           u * (61.0 / 49152 + u * (-1385.0 / 1048576 + u * 50521.0 / 20971520))));
  return std::log(climbed) + 0.5 * std::log(w) + series;
}

// I_x(a, 1/2) * B(a, 1/2) / (x^a y^(1/2)), with y = 1 - x, by the continued fraction of Didonato
// and Morris (1992, equation 9) and Lentz's method. The plainer fraction (DLMF 8.17.22) knows y
// only as 1 - x and loses five digits at a million degrees; this one takes it as it is.
double tails_fraction(double a, double x, double y) {
  constexpr double kTiny = 1e-300;
  constexpr double kB = 0.5;
  const auto away_from_zero = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  const double lambda = a * y - kB * x + 1;
  double result = away_from_zero(a * lambda / (a + 1));
  double c = result;
  double d = 0;
  for (int i = 1; i < kMostTerms; ++i) {
    const double m = i;
    const double q = x / (a + 2 * m - 1);
    const double above = (a + m - 1) * q * (a + kB + m - 1) * q * m * (kB - m);
    const double beside = m + m * (kB - m) * q + (a + m) * (lambda + m * (1 + y)) / (a + 2 * m + 1);
    d = 1 / away_from_zero(beside + above * d);
    c = away_from_zero(beside + above / c);
    result *= d * c;
    if (std::fabs(d * c - 1) <= std::numeric_limits<double>::epsilon()) {
      break;
    }
  }
  return 1 / result;
}

// I_y(1/2, a) * B(1/2, a) / (x^a y^(1/2)) by its power series (DLMF 8.17.8), all terms of which are
// positive.
double middle_series(double a, double y) {
  double term = 2;
  double sum = term;
  for (int n = 0; n < kMostTerms && term > sum * 1e-17; ++n) {
    term *= (a + 0.5 + n) / (1.5 + n) * y;
    sum += term;
  }
  return sum;
}

struct Shares {
  double middle;  // P(|T| < t)
  double tails;   // P(|T| >= t)
};

// Both shares, the smaller one to nearly full precision.
Shares shares(double t, double degrees) {
  if (t == 0 || std::isinf(t)) {
    return t == 0 ? Shares{0, 1} : Shares{1, 0};
  }
  if (degrees >= kNormalDegrees) {
    return {std::erf(t / std::numbers::sqrt2), std::erfc(t / std::numbers::sqrt2)};
  }
  const double a = degrees / 2;
  const double square = t * t / degrees;  // infinite for t beyond 1e154: then x is 0, y 1
  const double x = 1 / (1 + square);      // v / (v + t^2)
  const double y = 1 / (1 + 1 / square);  // 1 - x, without cancelling
  const double log_x =
      -(std::isinf(square) ? 2 * std::log(t) - std::log(degrees) : std::log1p(square));
  // x^a y^(1/2) / B(a, 1/2)
  const double front =
      std::exp(a * log_x + log_gamma_ratio(a)) * std::sqrt(y * std::numbers::inv_pi);
  if (t * t < 3 && y < 0.75) {
    const double middle = front * middle_series(a, y);
    return {middle, 1 - middle};
  }
  const double tails = front * tails_fraction(a, x, y);
  return {1 - tails, tails};
}

}  // namespace

double student_two_sided(double t, double degrees) {
  TRIREME_CHECK(degrees > 0, "Student's t needs degrees of freedom above 0, found ", degrees);
  return std::isnan(t) ? t : shares(std::fabs(t), degrees).tails;
}

double student_quantile(double probability, double degrees) {
  TRIREME_CHECK(degrees > 0, "Student's t needs degrees of freedom above 0, found ", degrees);
  TRIREME_CHECK(probability >= 0 && probability <= 1,
                "expected a probability from 0 to 1, found ",
                probability);
  const bool below = probability < 0.5;
  const double tails = 2 * (below ? probability : 1 - probability);
  const double middle = below ? 1 - tails : 2 * probability - 1;
  if (tails == 0) {
    return (below ? -1 : 1) * std::numeric_limits<double>::infinity();
  }
  // The patterns of positive doubles rise with their value: halving the range of patterns ends at
  // neighbouring numbers, wherever the answer is, in at most 63 steps.
  const auto too_small = [&](double t) {
    const Shares found = shares(t, degrees);
    return tails < middle ? found.tails > tails : found.middle < middle;
  };
  auto low = std::bit_cast<std::uint64_t>(0.0);
  auto high = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());
  while (high - low > 1) {
    const std::uint64_t between = low + (high - low) / 2;
    (too_small(std::bit_cast<double>(between)) ? low : high) = between;
  }
  const double t = std::bit_cast<double>(high);
  return middle == 0 ? 0 : below ? -t : t;
}

}  // namespace trireme
