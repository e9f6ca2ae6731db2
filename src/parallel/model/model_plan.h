#pragma once

#include <vector>

#include "parallel/model/ownership.h"
#include "parallel/model/parameter_table.h"
#include "parallel/model/unit.h"

namespace trireme::detail {

// A model as the engine sees it: its parameters, the units they live in, and who owns what.
struct ModelPlan {
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  std::vector<Place> places;  // by parameter
  Ownership ownership;
  Device device{};         // where all of it is
  bool one_device = true;  // the owners', where it is a GPU

  const Unit& unit_of(std::size_t parameter) const { return units[places[parameter].unit]; }
  // A parameter's elements in its unit.
  Range range_of(std::size_t parameter) const {
    const std::int64_t offset = unit_of(parameter).layout.offset(places[parameter].index);
    return {offset, offset + parameters[parameter].numel};
  }
  // The parameter that a piece of a unit is part of.
  std::size_t parameter_of(std::size_t unit, const Piece& piece) const {
    return units[unit].parameters[piece.parameter];
  }

  // Fills in all but the parameters, of which it has a list.
  void complete(torch::nn::Module& model,
                const EngineOptions& options,
                const Communicator& ranks,
                const Communicator& owners) {
    units = plan_units(model, parameters, options);
    places = places_of(units, parameters.size());
    RankGroup among = RankGroup::of(owners);
    among.one_device = among.one_device && one_device;
    ownership = Ownership(options, RankGroup::of(ranks), among, units, parameters);
  }
};

}  // namespace trireme::detail
