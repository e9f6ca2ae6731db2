#include "parallel/model/unit.h"

#include <algorithm>
#include <unordered_map>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// Parameters that belong together by the shape of the model, whatever their dtype.
struct Group {
  std::vector<std::size_t> parameters;
  std::size_t bytes = 0;
  bool fixed = false;  // named by the user: not to be joined with another

  void add(std::size_t parameter, const std::vector<Parameter>& table) {
    parameters.push_back(parameter);
    bytes += static_cast<std::size_t>(table[parameter].numel) * dtype_bytes(table[parameter].dtype);
  }
};

// Walks the module tree: a module that fits into a unit is one, a larger one is taken apart.
class Grouping {
 public:
  Grouping(const std::vector<Parameter>& table, const EngineOptions& options)
      : table_(table), options_(options), taken_(table.size(), false) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      index_[table[i].tensor.unsafeGetTensorImpl()] = i;
    }
  }

  std::vector<Group> of(torch::nn::Module& model) {
    visit(model, "");
    for (const std::string& unit : options_.units) {
      TRIREME_CHECK(
          std::ranges::find(found_, unit) != found_.end(),
          "EngineOptions::units names {}, which is not a module of {} with parameters of its own",
          {unit, model.name()});
    }
    std::vector<Group> joined;
    for (Group& group : groups_) {
      if (!joined.empty() && !group.fixed && !joined.back().fixed &&
          joined.back().bytes + group.bytes <= options_.unit_bytes) {
        joined.back().parameters.insert(
            joined.back().parameters.end(), group.parameters.begin(), group.parameters.end());
        joined.back().bytes += group.bytes;
      } else {
        joined.push_back(std::move(group));
      }
    }
    return joined;
  }

 private:
  Group all_of(torch::nn::Module& module, bool recurse) {
    Group group;
    for (const at::Tensor& tensor : module.parameters(recurse)) {
      const auto entry = index_.find(tensor.unsafeGetTensorImpl());
      if (entry != index_.end() && !taken_[entry->second] &&
          std::ranges::find(group.parameters, entry->second) == group.parameters.end()) {
        group.add(entry->second, table_);
      }
    }
    return group;
  }

  void take(Group group) {
    for (const std::size_t parameter : group.parameters) {
      taken_[parameter] = true;
    }
    if (!group.parameters.empty()) {
      groups_.push_back(std::move(group));
    }
  }

  bool contains_named_unit(const std::string& name) const {
    return std::ranges::any_of(options_.units, [&](const std::string& unit) {
      return name.empty() || unit.rfind(name + ".", 0) == 0;
    });
  }

  void visit(torch::nn::Module& module, const std::string& name) {
    Group whole = all_of(module, true);
    const bool named = std::ranges::find(options_.units, name) != options_.units.end();
    if (named) {
      whole.fixed = true;
      if (!whole.parameters.empty()) {
        found_.push_back(name);
      }
      return take(std::move(whole));
    }
    const auto children = module.named_children();
    if (children.is_empty() || (whole.bytes <= options_.unit_bytes && !contains_named_unit(name))) {
      return take(std::move(whole));
    }
    // Its own parameters one by one: joining makes them as large as they may be.
    for (const std::size_t parameter : all_of(module, false).parameters) {
      Group own;
      own.add(parameter, table_);
      take(std::move(own));
    }
    for (const auto& child : children) {
      visit(*child.value(), name.empty() ? child.key() : name + "." + child.key());
    }
  }

  const std::vector<Parameter>& table_;
  const EngineOptions& options_;
  std::unordered_map<const void*, std::size_t> index_;
  std::vector<bool> taken_;
  std::vector<Group> groups_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<Unit> plan_units(torch::nn::Module& model,
                             const std::vector<Parameter>& parameters,
                             const EngineOptions& options) {
  std::vector<Unit> units;
  for (const Group& group : Grouping(parameters, options).of(model)) {
    // One unit for every combination of dtype and treatment in the group.
    std::vector<Unit> parts;
    for (const std::size_t index : group.parameters) {
      const Parameter& parameter = parameters[index];
      const auto same = [&](const Unit& unit) {
        return unit.dtype == parameter.dtype && unit.trainable == parameter.trainable &&
               !unit.sparse && !parameter.sparse;
      };
      auto part = std::ranges::find_if(parts, same);
      if (part == parts.end()) {
        Unit unit;
        unit.name = parameter.name;
        unit.dtype = parameter.dtype;
        unit.trainable = parameter.trainable;
        unit.sparse = parameter.sparse;
        parts.push_back(std::move(unit));
        part = parts.end() - 1;
      }
      part->parameters.push_back(index);
    }
    for (Unit& unit : parts) {
      std::vector<std::int64_t> numels;
      for (const std::size_t parameter : unit.parameters) {
        numels.push_back(parameters[parameter].numel);
      }
      unit.layout = FlatLayout(numels, unit.dtype);
      if (options.round_weights && unit.trainable) {
        unit.rounding =
            RoundedUnit::of(unit.layout, unit.parameters, parameters, options.round_weights);
      }
      units.push_back(std::move(unit));
    }
  }
  return units;
}

std::vector<Place> places_of(const std::vector<Unit>& units, std::size_t parameter_count) {
  std::vector<Place> places(parameter_count);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (std::size_t index = 0; index < units[unit].parameters.size(); ++index) {
      places[units[unit].parameters[index]] = {unit, index};
    }
  }
  return places;
}

}  // namespace trireme::detail
