#include "average/sync_phases.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "average/averaging_mode.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"

namespace trireme {

std::string to_text(const SyncMode& mode) {
  if (std::holds_alternative<Exact>(mode)) {
    return "exact";
  }
  const Averaging::Mode averaging = detail::averaging_mode(mode);
  return detail::concat(detail::mode_name(averaging), ":", detail::steps_of(averaging));
}

namespace detail {
namespace {

using Json = nlohmann::json;

void set_steps(SyncMode& mode, std::int64_t steps) {
  std::visit(
      [steps](auto& each) {
        if constexpr (requires { each.steps; }) {
          each.steps = steps;
        }
      },
      mode);
}

// All of a mode but how many steps are between averages, which to_text() has.
Json details_of(const SyncMode& mode) {
  if (const auto* diloco = std::get_if<DiLoCo>(&mode)) {
    return {{"outer_lr", diloco->outer.lr},
            {"outer_momentum", diloco->outer.momentum},
            {"outer_nesterov", diloco->outer.nesterov}};
  }
  if (const auto* gossip = std::get_if<Gossip>(&mode)) {
    return {{"graph", static_cast<int>(gossip->graph)}, {"seed", gossip->seed}};
  }
  return Json::object();
}

Json json_of(const SyncPhase& phase) {
  return {{"from", phase.from}, {"mode", to_text(phase.mode)}, {"details", details_of(phase.mode)}};
}

void take_details(const Json& details, SyncMode& mode) {
  if (auto* diloco = std::get_if<DiLoCo>(&mode)) {
    diloco->outer = {.lr = details.at("outer_lr").get<double>(),
                     .momentum = details.at("outer_momentum").get<double>(),
                     .nesterov = details.at("outer_nesterov").get<bool>()};
  } else if (auto* gossip = std::get_if<Gossip>(&mode)) {
    const int graph = details.at("graph").get<int>();
    TRIREME_CHECK(graph >= 0 && graph <= static_cast<int>(Gossip::Graph::kRandom),
                  "restore(): expected what progress() returned, found a graph {}",
                  {graph});
    gossip->graph = static_cast<Gossip::Graph>(graph);
    gossip->seed = details.at("seed").get<std::uint64_t>();
  }
}

// What to_text() has written; the rest of it is in `details`, or where there are none, that of the
// mode with this name.
SyncMode mode_of(const std::string& text,
                 const std::vector<SyncPhase>& phases,
                 const Json* details = nullptr) {
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::int64_t steps =
      colon == std::string::npos ? 0 : parse_integer(text.substr(colon + 1)).value_or(0);
  if (text == "exact") {
    return Exact{};
  }
  std::optional<SyncMode> mode;
  if (name == "local") {
    mode = Local{};
  } else if (details != nullptr && name == "diloco") {
    mode = DiLoCo{};
  } else if (details != nullptr && name == "gossip") {
    mode = Gossip{};
  }
  for (const SyncPhase& phase : phases) {
    if (!mode && !is_exact(phase.mode) && mode_name(averaging_mode(phase.mode)) == name) {
      mode = phase.mode;
    }
  }
  TRIREME_CHECK(
      mode && steps >= 1,
      "the state was saved in a phase \"{}\", but no phase is of that kind here: give the "
      "same phases, or load the weights alone",
      {text});
  set_steps(*mode, steps);
  if (details != nullptr) {
    take_details(*details, *mode);
  }
  return *mode;
}

SyncPhase phase_of(const Json& json, const std::vector<SyncPhase>& phases) {
  return {json.at("from").get<std::int64_t>(),
          mode_of(json.at("mode").get<std::string>(),
                  phases,
                  json.contains("details") ? &json.at("details") : nullptr)};
}

}  // namespace

Averaging::Mode averaging_mode(const SyncMode& mode) {
  return std::visit(
      [](const auto& each) -> Averaging::Mode {
        if constexpr (requires { each.steps; }) {
          return each;
        } else {
          throw Error("an exact phase is not averaged");
        }
      },
      mode);
}

bool same_but_for_steps(const SyncMode& a, const SyncMode& b) {
  SyncMode one = a;
  SyncMode other = b;
  set_steps(one, 1);
  set_steps(other, 1);
  return is_exact(a) == is_exact(b) &&
         (is_exact(a) || description_of(averaging_mode(one), AveragingOptions{}) ==
                             description_of(averaging_mode(other), AveragingOptions{}));
}

void check_phases(const Phased& options, const Replicas& replicas) {
  TRIREME_CHECK(!options.phases.empty() && options.phases.front().from == 0,
                "PhasedEngine: expected phases of which the first is from step 0, found ",
                options.phases.empty() ? std::string("none")
                                       : concat("one from step ", options.phases.front().from));
  for (std::size_t i = 0; i < options.phases.size(); ++i) {
    const SyncPhase& phase = options.phases[i];
    TRIREME_CHECK(i == 0 || phase.from > options.phases[i - 1].from,
                  "PhasedEngine: expected phases of ascending steps, found one from step {} after "
                  "one from step {}",
                  {phase.from, i == 0 ? 0 : options.phases[i - 1].from});
    if (!is_exact(phase.mode)) {
      check_averaging(averaging_mode(phase.mode), {});
      check_engine_options(options.engine, averaging_mode(phase.mode), replicas);
    }
  }
  TRIREME_CHECK(options.engine.shares.empty(),
                "PhasedEngine: EngineOptions::shares has an entry for each rank of an engine, of "
                "which an exact phase has {} and a replica {}: leave them out",
                {replicas.world().size(), replicas.mine()->size()});
  check_engine_options(options.engine, Local{}, replicas);  // a loop may enter one at any time
  TRIREME_CHECK(options.engine.micro_batches % replicas.count() == 0,
                "PhasedEngine: expected micro_batches of which {} replicas have as many each, "
                "found {}",
                {replicas.count(), options.engine.micro_batches});
  if (options.engine.compress) {
    const Compressor::Format& format = options.engine.compress->format();
    TRIREME_CHECK(
        !format.feedback && format.rank == 0,
        "PhasedEngine: {} keeps what it leaves out of each micro-batch of a step, of which "
        "replicas have others than all ranks together: use a compressor without "
        "feedback (bf16, fp16, int8, randk)",
        {format.name});
  }
}

std::string description_of(const Phased& options) {
  std::string text = concat(options.replicas.ranks, " ranks each");
  for (const SyncPhase& phase : options.phases) {
    text += concat(", from step {} {}",
                   {phase.from,
                    is_exact(phase.mode)
                        ? "exact"
                        : description_of(averaging_mode(phase.mode), {.states = options.states})});
  }
  return text;
}

const SyncPhase& phase_at(const std::vector<SyncPhase>& phases, std::int64_t step) {
  const auto next = std::ranges::upper_bound(phases, step, {}, &SyncPhase::from);
  return next == phases.begin() ? phases.front() : *std::prev(next);
}

std::string PhaseProgress::added_to(const std::string& progress) const {
  Json json = Json::parse(progress);
  json["phases"] = Json::array();
  for (const SyncPhase& phase : entered) {
    json["phases"].push_back(json_of(phase));
  }
  if (planned) {
    json["planned_phase"] = json_of(*planned);
  }
  json["phased_steps"] = steps;
  json["averagings_before"] = averagings;
  return json.dump();
}

PhaseProgress PhaseProgress::parse(const std::string& text, const std::vector<SyncPhase>& phases) {
  TRIREME_CHECK(!json_too_deep_at(text),
                "restore(): expected what progress() returned, found JSON of more than {} levels",
                {kMostJsonLevels});
  try {
    const Json json = Json::parse(text);
    PhaseProgress found;
    found.steps = json.value("phased_steps", json.at("steps").get<std::int64_t>());
    found.averagings = json.value("averagings_before", std::int64_t{0});
    if (json.contains("replicas")) {
      found.averaging = json.at("mode").get<std::string>();
    }
    for (const Json& phase : json.value("phases", Json::array())) {
      found.entered.push_back(phase_of(phase, phases));
    }
    if (json.contains("planned_phase")) {
      found.planned = phase_of(json.at("planned_phase"), phases);
    }
    const auto ascends = [](const SyncPhase& a, const SyncPhase& b) { return a.from >= b.from; };
    TRIREME_CHECK(found.steps >= 0 && found.averagings >= 0 &&
                      std::ranges::adjacent_find(found.entered, ascends) == found.entered.end(),
                  "restore(): expected what progress() returned, where phases ascend");
    if (found.entered.empty() && !found.averaging.empty()) {  // of replicas that had no phases
      found.entered = {{0, mode_of(concat(found.averaging, ":1"), phases)}};
    }
    return found;
  } catch (const Json::exception& error) {
    throw ConfigError(concat("restore(): expected what progress() returned: ", error.what()));
  }
}

}  // namespace detail
}  // namespace trireme
