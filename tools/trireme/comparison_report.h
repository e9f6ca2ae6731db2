#pragma once

#include <string>

#include "comparison.h"

namespace trireme::tools {

// For people.
std::string report_text(const Comparison& comparison);
// For programs; numbers that are not finite are null.
std::string report_json(const Comparison& comparison);

}  // namespace trireme::tools
