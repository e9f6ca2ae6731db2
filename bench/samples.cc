#include "samples.h"

#include <algorithm>

namespace trireme::bench {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double best(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace trireme::bench
