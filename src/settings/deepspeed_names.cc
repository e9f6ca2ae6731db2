#include "settings/deepspeed_names.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "settings/deepspeed_items.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::detail {
namespace {

void apply_optimizer(TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
  require_object("optimizer", value);
  static const Names known_params = {
      "lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "adam_w_mode"};
  static const Names tuning = {"torch_adam", "fused"};
  for_each_item(value, notes, [&](const std::string& name, const Json& item) {
    if (name == "type") {
      TRIREME_CHECK(item.is_string(), "optimizer.type: expected a name, found ", item.dump());
      std::string type = item.get<std::string>();
      std::transform(type.begin(), type.end(), type.begin(), [](unsigned char letter) {
        return static_cast<char>(std::tolower(letter));
      });
      std::string known;
      bool found = false;
      for (const RuleInfo& rule : optimizer_rules()) {
        found = found || rule.name == type;
        known += (known.empty() ? "" : ", ") + rule.name;
      }
      TRIREME_CHECK(found, "optimizer.type: expected one of ", known, ", found ", item.dump());
      settings.optimizer = type == "adam" ? "adamw" : type;  // unless adam_w_mode says otherwise
      notes.set_by["optimizer"] = "optimizer.type";
    } else if (name == "params") {
      require_object("optimizer.params", item);
    } else {
      refuse_unknown("optimizer", name, {"type", "params"});
    }
  });
  const Json params = value.value("params", Json::object());
  if (!params.is_object()) {
    return;  // that has been said
  }
  for_each_item(params, notes, [&](const std::string& name, const Json& item) {
    const std::string whole = "optimizer.params." + name;
    if (name == "betas" && item == Json("auto")) {
      set({settings, notes}, "beta1", whole, item);
      set({settings, notes}, "beta2", whole, item);
    } else if (name == "betas") {
      TRIREME_CHECK(item.is_array() && item.size() == 2,
                    "{}: expected two numbers, found {}",
                    {whole, item.dump()});
      set({settings, notes}, "beta1", whole, item[0]);
      set({settings, notes}, "beta2", whole, item[1]);
    } else if (name == "adam_w_mode") {
      // DeepSpeed's Adam decouples the decay unless this is false.
      TRIREME_CHECK(item.is_boolean(), whole, ": expected true or false, found ", item.dump());
      TRIREME_CHECK(settings.optimizer.starts_with("adam"),
                    "{}: it applies to Adam, found the optimizer {}",
                    {whole, settings.optimizer});
      settings.optimizer = item.get<bool>() ? "adamw" : "adam";
      notes.set_by["optimizer"] = whole;
    } else if (contains(known_params, name)) {
      set({settings, notes}, name.c_str(), whole, item);
    } else if (name == "bias_correction") {
      TRIREME_CHECK(item == Json(true),
                    "{}: expected true, which it always is here, found {}",
                    {whole, item.dump()});
    } else if (name == "torch_adam" && !params.contains("weight_decay")) {
      return;  // it says what the weight decay is
    } else if (contains(tuning, name)) {
      notes.without_effect.push_back(whole);
    } else {
      refuse_unknown("optimizer.params", name, known_params);
    }
  });
}

void apply_offload(TrainSettings& settings,
                   const std::string& whole,
                   const Json& value,
                   DeepspeedNotes& notes) {
  if (value.is_null()) {
    return;
  }
  require_object(whole, value);
  const Json device = value.value("device", Json("none"));
  if (device == Json("cpu")) {
    set({settings, notes}, "offload", whole + ".device", Json("optimizer"));
  } else if (device == Json("nvme")) {
    const Json folder = value.value("nvme_path", Json());
    TRIREME_CHECK(folder.is_string() && !folder.get<std::string>().empty(),
                  "{}.nvme_path: expected a folder, found {}",
                  {whole, folder.dump()});
    set({settings, notes},
        "offload",
        whole + ".device",
        Json(concat("disk:", folder.get<std::string>())));
  } else {
    TRIREME_CHECK(device == Json("none"),
                  "{}.device: expected none, cpu or nvme, found {}",
                  {whole, device.dump()});
  }
  for_each_item(value, notes, [&](const std::string& name, const Json& item) {
    const std::string item_name = whole + "." + name;
    if (name == "ratio") {
      TRIREME_CHECK(item == Json(1) || item == Json(1.0),
                    "{}: expected 1, as all states are in one place, found {}",
                    {item_name, item.dump()});
    } else if (contains({"pin_memory",
                         "buffer_count",
                         "buffer_size",
                         "fast_init",
                         "pipeline",
                         "pipeline_read",
                         "pipeline_write"},
                        name)) {
      notes.without_effect.push_back(item_name);
    } else if (name != "device" && name != "nvme_path") {
      refuse_unknown(whole, name, {"device", "nvme_path"});
    }
  });
}

void apply_zero(TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
  require_object("zero_optimization", value);
  // They tune how DeepSpeed moves data; what is computed does not depend on them.
  static const Names tuning = {"allgather_partitions",
                               "allgather_bucket_size",
                               "overlap_comm",
                               "reduce_scatter",
                               "contiguous_gradients",
                               "round_robin_gradients",
                               "sub_group_size",
                               "stage3_max_live_parameters",
                               "stage3_max_reuse_distance",
                               "stage3_prefetch_bucket_size",
                               "stage3_param_persistence_threshold",
                               "stage3_gather_16bit_weights_on_model_save",
                               "load_from_fp32_weights",
                               "elastic_checkpoint",
                               "ignore_unused_parameters",
                               "memory_efficient_linear"};
  for_each_item(value, notes, [&](const std::string& name, const Json& item) {
    const std::string whole = "zero_optimization." + name;
    if (name == "stage") {
      set({settings, notes}, "zero", whole, item);
    } else if (name == "reduce_bucket_size") {
      if (item != Json("auto")) {
        TRIREME_CHECK(
            item.is_number(), whole, ": expected a number of elements, found ", item.dump());
        set({settings, notes}, "bucket_bytes", whole, Json(4 * item.get<double>()));
      }
    } else if (name == "offload_optimizer") {
      apply_offload(settings, whole, item, notes);
    } else if (name == "offload_param") {
      const bool off = item.is_null() ||
                       (item.is_object() && item.value("device", Json("none")) == Json("none"));
      TRIREME_CHECK(off,
                    whole,
                    ": Trireme does not offload parameters; leave it out, or set its device to "
                    "\"none\"");
    } else if (contains(tuning, name)) {
      notes.without_effect.push_back(whole);
    } else {
      Names known = tuning;
      known.insert(known.end(), {"stage", "reduce_bucket_size"});
      refuse_unknown("zero_optimization", name, known);
    }
  });
}

void apply_half(TrainSettings& settings,
                const std::string& which,
                const Json& value,
                DeepspeedNotes& notes) {
  require_object(which, value);
  const bool enabled = value.value("enabled", Json(false)) == Json(true);
  if (enabled) {
    const auto precision = which == "bf16" ? TrainPrecision::kBFloat16 : TrainPrecision::kFloat16;
    notes.attempt([&] {
      TRIREME_CHECK(
          settings.precision == TrainPrecision::kFloat32 || settings.precision == precision,
          "bf16 and fp16 are both enabled: choose one");
    });
    settings.precision = precision;
    notes.set_by["precision"] = which + ".enabled";
  }
  static const Names known = {"enabled",
                              "initial_scale_power",
                              "loss_scale_window",
                              "loss_scale",
                              "hysteresis",
                              "min_loss_scale"};
  const bool off = value.value("enabled", Json(false)) == Json(false);
  for_each_item(value, notes, [&](const std::string& name, const Json& item) {
    const std::string whole = concat(which, ".", name);
    if (name == "enabled") {
      TRIREME_CHECK(item.is_boolean() || item == Json("auto"),
                    "{}: expected true or false, found {}",
                    {whole, item.dump()});
    } else if (off && which == "fp16" && contains(known, name)) {
      return;  // DeepSpeed does not look at it either
    } else if (which == "fp16" && name == "initial_scale_power") {
      TRIREME_CHECK(item.is_number(), whole, ": expected a number, found ", item.dump());
      set({settings, notes}, "loss_scale_initial", whole, Json(std::exp2(item.get<double>())));
    } else if (which == "fp16" && name == "loss_scale_window") {
      set({settings, notes}, "loss_scale_window", whole, item);
    } else if (which == "fp16" && name == "loss_scale") {
      TRIREME_CHECK(item == Json(0) || item == Json(0.0),
                    "{}: expected 0 (a dynamic loss scale, the only kind here), found {}",
                    {whole, item.dump()});
    } else if (which == "fp16" && (name == "hysteresis" || name == "min_loss_scale")) {
      notes.without_effect.push_back(whole);
    } else {
      refuse_unknown(which, name, known);
    }
  });
}

using Apply = std::function<void(TrainSettings&, const Json&, DeepspeedNotes&)>;

const std::map<std::string, Apply>& handlers() {
  const auto same = [](const char* ours, const char* theirs) {
    return [=](TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
      set({settings, notes}, ours, theirs, value);
    };
  };
  const auto tuning = [](const char* theirs) {
    return [=](TrainSettings&, const Json&, DeepspeedNotes& notes) {
      notes.without_effect.push_back(theirs);
    };
  };
  const auto half = [](const char* which) {
    return [=](TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
      apply_half(settings, which, value, notes);
    };
  };
  static const std::map<std::string, Apply> handlers_by_name = {
      {"train_batch_size", same("batch", "train_batch_size")},
      {"train_micro_batch_size_per_gpu", same("micro_batch", "train_micro_batch_size_per_gpu")},
      {"gradient_accumulation_steps", same("accumulate", "gradient_accumulation_steps")},
      {"gradient_clipping", same("clip_norm", "gradient_clipping")},
      {"steps_per_print", same("log_every", "steps_per_print")},
      {"optimizer", apply_optimizer},
      {"scheduler", apply_scheduler},
      {"zero_optimization", apply_zero},
      {"bf16", half("bf16")},
      {"fp16", half("fp16")},
      {"tensorboard",
       [](TrainSettings& settings, const Json& value, DeepspeedNotes& notes) {
         require_object("tensorboard", value);
         set({settings, notes},
             "tensorboard",
             "tensorboard.enabled",
             value.value("enabled", Json(false)));
         for_each_item(value, notes, [&](const std::string& name, const Json& /*item*/) {
           if (name == "output_path" || name == "job_name") {
             notes.without_effect.push_back(
                 concat("tensorboard.", name, " (the run folder has the file)"));
           } else if (name != "enabled") {
             refuse_unknown("tensorboard", name, {"enabled", "output_path", "job_name"});
           }
         });
       }},
      {"wall_clock_breakdown", tuning("wall_clock_breakdown")},
      {"zero_allow_untested_optimizer", tuning("zero_allow_untested_optimizer")},
      {"zero_force_ds_cpu_optimizer", tuning("zero_force_ds_cpu_optimizer")},
      {"prescale_gradients", tuning("prescale_gradients")},
  };
  return handlers_by_name;
}

}  // namespace

bool apply_deepspeed(TrainSettings& settings,
                     const std::string& name,
                     const Json& value,
                     DeepspeedNotes& notes) {
  const auto found = handlers().find(name);
  if (found == handlers().end()) {
    return false;
  }
  found->second(settings, value, notes);
  return true;
}

std::vector<std::string> deepspeed_names() {
  Names names;
  for (const auto& [name, apply] : handlers()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace trireme::detail
