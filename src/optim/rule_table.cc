// The rules by name: a line for each, in the order of the documentation.

#include <functional>

#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

struct Entry {
  RuleInfo info;
  std::function<std::unique_ptr<Optimizer>()> make;
};

// `usual`: what a command takes for settings where that is not the default of the rule's options,
// which is PyTorch's.
template <class Options>
Entry rule(const std::map<std::string, double>& usual = {}) {
  const OptimizerOf<Options> its;
  Entry entry{{its.name(), its.values(), its.switches()},
              [] { return std::make_unique<OptimizerOf<Options>>(); }};
  for (auto& [name, value] : entry.info.settings) {
    const auto other = usual.find(name);
    value = other != usual.end() ? other->second : value;
  }
  return entry;
}

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      rule<AdamWOptions>(),
      rule<AdamOptions>(),
      rule<SgdOptions>({{"lr", 0.1}, {"momentum", 0.9}}),
      rule<LambOptions>(),
      rule<AdagradOptions>(),
      rule<LionOptions>(),
      rule<RmspropOptions>(),
      rule<AdafactorOptions>(),
  };
  return entries;
}

const Entry& entry_of(const std::string& name) {
  for (const Entry& entry : table()) {
    if (entry.info.name == name) {
      return entry;
    }
  }
  const auto its_name = [](const Entry& entry) { return entry.info.name; };
  throw ConfigError(detail::concat(
      "optimizer: expected one of ", detail::listed(table(), its_name), ", found \"", name, "\""));
}

}  // namespace

const std::vector<RuleInfo>& optimizer_rules() {
  static const std::vector<RuleInfo> rules = [] {
    std::vector<RuleInfo> all;
    for (const Entry& entry : table()) {
      all.push_back(entry.info);
    }
    return all;
  }();
  return rules;
}

std::optional<double> RuleInfo::usual(const std::string& setting) const {
  for (const auto& [its, value] : settings) {
    if (its == setting) {
      return value;
    }
  }
  return std::nullopt;
}

const RuleInfo& optimizer_rule(const std::string& name) {
  return entry_of(name).info;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name,
                                          const std::map<std::string, double>& settings) {
  return entry_of(name).make()->with(settings);
}

}  // namespace trireme
