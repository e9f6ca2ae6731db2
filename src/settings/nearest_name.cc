#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "trireme/core/nearest_word.h"
#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

// What other programs call it.
constexpr std::array<std::pair<const char*, const char*>, 14> kOtherNames = {{
    {"learning_rate", "lr"},
    {"batch_size", "batch"},
    {"micro_batch_size", "micro_batch"},
    {"num_layers", "layers"},
    {"num_heads", "heads"},
    {"hidden_size", "width"},
    {"max_steps", "steps"},
    {"output_dir", "run"},
    {"n", "ranks"},
    {"np", "ranks"},
    {"nproc", "ranks"},
    {"nproc_per_node", "ranks"},
    {"world_size", "ranks"},
    {"gpu", "cuda"},
}};

std::string dashes_of(const std::string& name) {
  return name.starts_with("--") ? "--" : "";
}

// "learning_rate" of "--learning-rate".
std::string word_of(const std::string& name) {
  std::string word = name.substr(dashes_of(name).size());
  std::replace(word.begin(), word.end(), '-', '_');
  return word;
}

// What such a name of another program is here, "--lr" for "--learning-rate"; empty where it is
// none, or its meaning no candidate.
std::string by_another_name(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string dashes = dashes_of(name);
  for (const auto& [theirs, ours] : kOtherNames) {
    std::string candidate = dashes + ours;
    if (!dashes.empty()) {
      std::replace(candidate.begin() + 2, candidate.end(), '_', '-');
    }
    if (word_of(name) == theirs &&
        std::find(candidates.begin(), candidates.end(), candidate) != candidates.end()) {
      return candidate;
    }
  }
  return "";
}

// The same for "lerning_rate". Everything is near to a short one.
std::string near_another_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::vector<std::string> others;
  for (const auto& [theirs, ours] : kOtherNames) {
    if (std::string_view(theirs).size() > 5) {
      others.emplace_back(theirs);
    }
  }
  const std::string near = nearest_word(word_of(name), others);
  return near.empty() ? "" : by_another_name(dashes_of(name) + near, candidates);
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best = by_another_name(name, candidates);  // "gpu" is nearer to "cpu"
  if (best.empty()) {
    best = nearest_word(name, candidates);
  }
  if (best.empty()) {
    best = near_another_name(name, candidates);
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
