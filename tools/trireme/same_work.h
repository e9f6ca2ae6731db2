#pragma once

#include <string>
#include <vector>

// What two runs have to have in common for their speeds, or their results, to say something about
// each other.

namespace trireme::tools {

struct ComparedSetting {
  std::string name;
  std::string a;  // "-" where the run has no such setting
  std::string b;
};

// What a setting does to the time that a sample takes.
enum class Effect {
  kWork,    // it changes what is computed
  kManner,  // how the same is computed: whose speed is then a fair question
  kNone,
};

// A setting that is not known changes the work: better no verdict than a wrong one.
Effect effect_on_speed(const std::string& setting);

// Each of these is a reason in words, "model: mlp and gpt"; none: they can be compared.
using Reasons = std::vector<std::string>;

// Why the speeds of runs whose settings differ like this are those of different work. `same_data`:
// whatever the data was called, it is known to be the same.
Reasons other_work(const std::vector<ComparedSetting>& differing, bool same_data);
// What keeps a difference in speed from being the number of ranks alone.
Reasons more_than_ranks(const std::vector<ComparedSetting>& differing, bool same_data);
// Why results of runs whose settings differ like this are answers to different questions.
Reasons other_question(const std::vector<ComparedSetting>& differing);

// "different model: mlp and gpt; batch: 128 and 32".
std::string reasons_text(const Reasons& reasons);

}  // namespace trireme::tools
