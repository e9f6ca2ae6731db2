#pragma once

#include <map>
#include <string>
#include <vector>

#include "comparison.h"

// From what was measured to what is said of it.

namespace trireme::tools {

// The names that all of these have.
std::vector<std::string> common_names(const std::vector<const std::map<std::string, double>*>& all);

// One number of each run, and not even their difference: what they are numbers of differs.
void compare_nothing(Comparison& comparison, const std::string& why);

// All metrics of a comparison at once: the more there are, the more likely chance makes one of them
// stand out.
void judge(std::vector<ComparedMetric>& metrics);

}  // namespace trireme::tools
