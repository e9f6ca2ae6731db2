#include "settings/deepspeed_items.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::detail {
namespace {

double number(const Json& params, const char* name, double otherwise) {
  const Json item = params.value(name, Json(otherwise));
  TRIREME_CHECK(
      item.is_number(), "scheduler.params.", name, ": expected a number, found ", item.dump());
  return item.get<double>();
}

// The first member of params that is above 0; empty where none is.
std::string first_above_zero(const Json& params, const Names& names) {
  for (const std::string& name : names) {
    if (number(params, name.c_str(), 0) > 0) {
      return name;
    }
  }
  return "";
}

// Step s, counted from 0, of a cycle of 2 h steps has the same rate in both, up to step 2 h, which
// is at cycle_min_lr again. After that cyclic begins another cycle, and DeepSpeed's rate stays
// where it is, or decays.
void check_cycle_ends_the_run(const Target& target, const Json& params, double cycle) {
  const bool decays =
      number(params, "decay_step_size", 0) != 0 && number(params, "decay_lr_rate", 0) != 0;
  const std::string difference =
      concat("DeepSpeed's learning rate then {}, and that of Trireme's cyclic rises again",
             {decays ? "decays (decay_lr_rate)" : "stays at cycle_min_lr"});
  const bool known = target.settings.steps > 0 && target.notes.flags.count("steps") == 0;
  if (known ? static_cast<double>(target.settings.steps) > cycle + 1 : decays) {
    throw ConfigError(
        concat("scheduler OneCycle: expected \"steps\": {}, or fewer, since {}; found {}; or leave "
               "the scheduler out and choose one of Trireme's own with \"schedule\"",
               {cycle + 1,
                difference,
                known ? std::to_string(target.settings.steps) : "no number of steps"}));
  }
  if (!known) {
    target.notes.remarks.push_back(concat(
        "scheduler OneCycle: a cycle takes {} steps; in a longer run, {}", {cycle, difference}));
  }
}

void apply_one_cycle(const Target& target, const Json& params) {
  DeepspeedNotes& notes = target.notes;
  const double first = number(params, "cycle_first_step_size", 2000);
  const double second = number(params, "cycle_second_step_size", first);
  const double highest = number(params, "cycle_max_lr", 0);
  TRIREME_CHECK(highest > 0 && first >= 1 && second >= 1,
                "scheduler OneCycle: expected cycle_max_lr and step sizes above 0");
  target.settings.schedule = ScheduleKind::kCyclic;
  notes.attempt(
      [&] { set(target, "lr", "scheduler.params.cycle_max_lr", params.at("cycle_max_lr")); });
  notes.attempt([&] {
    set(target,
        "low_factor",
        "scheduler.params.cycle_min_lr",
        number(params, "cycle_min_lr", 0) / highest);
  });
  notes.attempt(
      [&] { set(target, "half_period", "scheduler.params.cycle_first_step_size", first); });
  notes.attempt([&] {
    TRIREME_CHECK(first == second,
                  "scheduler OneCycle: expected a cycle_second_step_size of {}, the same as "
                  "cycle_first_step_size, since Trireme's cyclic falls in as many steps as it "
                  "rises, found {}; or leave the scheduler out and choose one of Trireme's own, "
                  "\"schedule\": \"one_cycle\" say, which rises and falls along half cosines",
                  {first, second});
  });
  notes.attempt([&] {
    const std::string stairs =
        first_above_zero(params, {"cycle_first_stair_count", "cycle_second_stair_count"});
    TRIREME_CHECK(
        stairs.empty(),
        "scheduler.params.{}: expected 0, since Trireme's cyclic has another rate in each "
        "step, found {}",
        {stairs, number(params, stairs.c_str(), 0)});
  });
  notes.attempt([&] {
    const bool has_betas = optimizer_rule(target.settings.optimizer).usual("beta1").has_value();
    TRIREME_CHECK(!has_betas || params.value("cycle_momentum", Json(true)) == Json(false),
                  "scheduler.params.cycle_momentum: expected false, since DeepSpeed's OneCycle "
                  "otherwise (it is true if it is not given) moves beta1 of {} between "
                  "cycle_min_mom and cycle_max_mom and sets beta2 to 0.99, and Trireme's schedules "
                  "change the learning rate only",
                  {target.settings.optimizer});
  });
  notes.attempt([&] { check_cycle_ends_the_run(target, params, 2 * first); });
}

}  // namespace

void apply_scheduler(TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
  require_object("scheduler", value);
  const Json params = value.value("params", Json::object());
  require_object("scheduler.params", params);
  for_each_item(value, notes, [&](const std::string& name, const Json& /*item*/) {
    if (name != "type" && name != "params") {
      refuse_unknown("scheduler", name, {"type", "params"});
    }
  });
  const Json named = value.value("type", Json());
  const std::string type = named.is_string() ? named.get<std::string>() : "";
  notes.set_by["schedule"] = "scheduler.type";
  Names known = {
      "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"};
  if (type == "WarmupLR") {
    settings.schedule = ScheduleKind::kConstant;
  } else if (type == "WarmupDecayLR") {
    settings.schedule = ScheduleKind::kLinear;
    known.push_back("total_num_steps");
  } else if (type == "WarmupCosineLR") {
    settings.schedule = ScheduleKind::kCosine;
    known = {"total_num_steps",
             "warmup_num_steps",
             "warmup_min_ratio",
             "cos_min_ratio",
             "warmup_type",
             "last_batch_iteration"};
    notes.attempt([&] {
      set({settings, notes},
          "final_factor",
          "scheduler.params.cos_min_ratio",
          Json(number(params, "cos_min_ratio", 0.0001)));
    });
    notes.attempt([&] {
      const double ratio = number(params, "warmup_min_ratio", 0);
      TRIREME_CHECK(ratio == 0,
                    "scheduler.params.warmup_min_ratio: expected 0, since a warm-up of n steps "
                    "begins at 1/(n+1) of the learning rate in Trireme, found ",
                    ratio);
    });
  } else if (type == "OneCycle") {
    known = {"cycle_min_lr",
             "cycle_max_lr",
             "cycle_first_step_size",
             "cycle_second_step_size",
             "cycle_first_stair_count",
             "cycle_second_stair_count",
             "decay_step_size",
             "decay_lr_rate",
             "cycle_momentum",
             "cycle_min_mom",
             "cycle_max_mom",
             "decay_mom_rate",
             "last_batch_iteration"};
    apply_one_cycle({settings, notes}, params);
  } else {
    throw ConfigError(concat(
        "scheduler.type: expected WarmupLR, WarmupDecayLR, WarmupCosineLR or OneCycle, found ",
        named.is_null() ? "none" : named.dump(),
        "; Trireme's own schedules are set with \"schedule\""));
  }
  for_each_item(params, notes, [&](const std::string& name, const Json& item) {
    const std::string whole = "scheduler.params." + name;
    if (!contains(known, name)) {
      refuse_unknown("scheduler.params", name, known);
    }
    if (name == "warmup_num_steps") {
      set({settings, notes}, "warm_up", whole, item);
    } else if (name == "total_num_steps") {
      set({settings, notes}, "schedule_steps", whole, item);
    } else if (name == "warmup_max_lr") {
      set({settings, notes}, "lr", whole, item);
    } else if (name == "warmup_min_lr") {
      TRIREME_CHECK(item == Json(0) || item == Json(0.0) || item == Json("auto"),
                    "{}: expected 0, since a warm-up of n steps begins at 1/(n+1) of the learning "
                    "rate in Trireme, found {}",
                    {whole, item.dump()});
    } else if (name == "warmup_type") {
      TRIREME_CHECK(item == Json("linear"),
                    "{}: expected \"linear\": in Trireme a warm-up raises the learning rate by the "
                    "same amount in each step; found {}",
                    {whole, item.dump()});
    } else if (name == "last_batch_iteration") {
      notes.without_effect.push_back(whole);
    }
  });
  const bool warms_up = type != "OneCycle";
  if (warms_up && !params.contains("warmup_type")) {
    notes.remarks.emplace_back(
        "the warm-up is linear, as with \"warmup_type\": \"linear\"; DeepSpeed's default is "
        "\"log\", "
        "which Trireme does not have");
  }
  if (contains(known, "warmup_max_lr") && !params.contains("warmup_max_lr")) {
    notes.remarks.emplace_back(
        "the warm-up ends at the learning rate (optimizer.params.lr, or the model's own), not at "
        "0.001, DeepSpeed's default of scheduler.params.warmup_max_lr, which sets another");
  }
  if (warms_up && !params.contains("warmup_num_steps")) {
    settings.warm_up = 1000;  // DeepSpeed's default
    notes.set_by["warm_up"] = "scheduler.type (whose warmup_num_steps is 1000 if it is not given)";
    notes.remarks.emplace_back(
        "the warm-up takes 1000 steps, DeepSpeed's default; scheduler.params.warmup_num_steps sets "
        "another number");
  }
}

}  // namespace trireme::detail
