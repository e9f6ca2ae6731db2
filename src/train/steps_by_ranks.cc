#include "train/steps_by_ranks.h"

#include "trireme/core/error.h"

namespace trireme::detail {

void append_steps(std::vector<StepsOnRanks>& parts, const StepsOnRanks& steps) {
  if (!parts.empty() && parts.back().ranks == steps.ranks && parts.back().to + 1 == steps.from) {
    parts.back().to = steps.to;
  } else {
    parts.push_back(steps);
  }
}

std::string steps_text(const std::vector<StepsOnRanks>& parts) {
  constexpr std::size_t kMostShown = 6;
  if (parts.size() > kMostShown) {
    return concat("{} in the last of {} parts (summary.json)", {parts.back().ranks, parts.size()});
  }
  std::string text;
  for (const StepsOnRanks& part : parts) {
    text += concat("{}{} in {} {}{}",
                   {text.empty() ? "" : ", ",
                    part.ranks,
                    part.from == part.to ? "step" : "steps",
                    part.from,
                    part.from == part.to ? "" : concat(" to ", part.to)});
  }
  return text;
}

}  // namespace trireme::detail
