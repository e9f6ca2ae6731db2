#pragma once

#include <cstddef>
#include <vector>

#include "parallel/model/model_plan.h"

namespace trireme::detail {

// A range of a unit that a rank owns, and where it is in a message of all of them.
struct OwnedPart {
  std::size_t unit = 0;
  Range range;
  std::size_t offset = 0;  // in bytes
  std::int64_t width = 0;  // of a row, where gradients are rows
};

enum class Content { kGradients, kWeights };  // in the precision of sums, or of the parameters

// What is sent to an owner, or by it; each part begins at a multiple of 64 bytes.
struct OwnedParts {
  std::vector<OwnedPart> parts;
  std::vector<OwnedPart> rows;  // of units whose gradients are rows, which have no place in it
  std::size_t bytes = 0;

  OwnedParts(const ModelPlan& plan, int owner, Content content);
  Dtype dtype(const ModelPlan& plan, const OwnedPart& part) const {
    const Unit& unit = plan.units[part.unit];
    return content == Content::kGradients ? unit.sum_dtype() : unit.dtype;
  }
  bool empty() const { return parts.empty() && rows.empty(); }
  Content content;
};

inline OwnedParts::OwnedParts(const ModelPlan& plan, int owner, Content what) : content(what) {
  constexpr std::size_t kAlign = 64;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const Range range = plan.ownership.ranges(unit)[static_cast<std::size_t>(owner)];
    if (plan.units[unit].trainable && plan.units[unit].sparse && !range.empty()) {
      rows.push_back({unit, range, 0, plan.parameters[plan.units[unit].parameters[0]].width()});
    } else if (plan.units[unit].trainable && !range.empty()) {
      parts.push_back({unit, range, bytes});
      const std::size_t size =
          static_cast<std::size_t>(range.size()) * dtype_bytes(dtype(plan, parts.back()));
      bytes += (size + kAlign - 1) / kAlign * kAlign;
    }
  }
}

}  // namespace trireme::detail
