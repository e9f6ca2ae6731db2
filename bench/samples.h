#pragma once

#include <vector>

namespace trireme::bench {

double median(std::vector<double> values);
double best(const std::vector<double>& values);

}  // namespace trireme::bench
