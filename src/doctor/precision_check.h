#pragma once

#include "doctor/finding.h"
#include "doctor/versions.h"

namespace trireme::detail {

// Whether computing in 16 bits saves time on this processor, besides memory.
Finding check_precisions(const Versions& versions);

}  // namespace trireme::detail
