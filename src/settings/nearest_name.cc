#include <algorithm>
#include <array>
#include <utility>

#include "trireme/core/nearest_word.h"
#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

// What other programs call it.
constexpr std::array<std::pair<const char*, const char*>, 8> kOtherNames = {{
    {"learning_rate", "lr"},
    {"batch_size", "batch"},
    {"micro_batch_size", "micro_batch"},
    {"num_layers", "layers"},
    {"num_heads", "heads"},
    {"hidden_size", "width"},
    {"max_steps", "steps"},
    {"output_dir", "run"},
}};

// "lr" for "lerning_rate", "--lr" for "--lerning-rate"; empty where that is no candidate.
std::string by_another_name(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string dashes = name.starts_with("--") ? "--" : "";
  std::string word = name.substr(dashes.size());
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::string> others;
  others.reserve(kOtherNames.size());
  for (const auto& [theirs, ours] : kOtherNames) {
    others.emplace_back(theirs);
  }
  const std::string near = nearest_word(word, others);
  for (const auto& [theirs, ours] : kOtherNames) {
    std::string candidate = dashes + ours;
    if (!dashes.empty()) {
      std::replace(candidate.begin() + 2, candidate.end(), '_', '-');
    }
    if (near == theirs &&
        std::find(candidates.begin(), candidates.end(), candidate) != candidates.end()) {
      return candidate;
    }
  }
  return "";
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best = nearest_word(name, candidates);
  if (best.empty()) {
    best = by_another_name(name, candidates);
  }
  if (best.empty()) {  // "learning_rate_schedule" is not near "schedule", but contains it
    for (const std::string& candidate : candidates) {
      if (candidate.size() >= 4 && candidate.size() > best.size() &&
          name.find(candidate) != std::string::npos) {
        best = candidate;
      }
    }
  }
  return best;
}

}  // namespace trireme
