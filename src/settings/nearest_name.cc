#include <algorithm>
#include <array>
#include <utility>

#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

// Letters changed, left out, put in or swapped with a neighbour (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

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

std::string nearest_of(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t changes = distance(name, candidate);
    if (changes < least) {
      least = changes;
      best = candidate;
    }
  }
  return best;
}

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
  const std::string near = nearest_of(word, others);
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
  std::string best = nearest_of(name, candidates);
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
