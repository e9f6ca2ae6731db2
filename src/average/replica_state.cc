#include "average/replica_state.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/json_depth.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

bool is_plain(const StateTensor& tensor) {
  return tensor.kind == kWeightKind || tensor.kind == kBufferKind;
}

// The list of a state of all replicas, and where a tensor of this rank's engine is in it.
struct Listed {
  StateView view;
  std::vector<std::optional<std::size_t>> plain;
  std::vector<std::optional<std::size_t>> own;
};

Listed list_tensors(const std::vector<StateTensor>& tensors,
                    StateForm form,
                    const Replicas& replicas,
                    const Differs& differs) {
  Listed listed;
  listed.plain.resize(tensors.size());
  listed.own.resize(tensors.size());
  std::vector<StateTensor>& all = listed.view.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind != kRandomKind && (form == StateForm::kOneEngine || is_plain(tensors[i]))) {
      listed.plain[i] = all.size();
      all.push_back(tensors[i]);
    }
  }
  for (int replica = 0; replica < replicas.count(); ++replica) {
    int generator = replica * replicas.mine()->size();  // ranks of the world
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      StateTensor tensor = tensors[i];
      // What cannot be averaged is each replica's own, also right after an averaging.
      const bool apart = (form == StateForm::kApart && differs(tensor)) ||
                         (tensor.kind == kBufferKind && !is_float(tensor.dtype));
      if (tensor.kind == kRandomKind) {
        tensor.name = concat("rank-", generator++);
      } else if (form != StateForm::kOneEngine && (!is_plain(tensor) || apart)) {
        tensor.kind = concat("replica-", replica, ".", tensor.kind);
      } else {
        continue;
      }
      if (replica == replicas.number()) {
        listed.own[i] = all.size();
      }
      all.push_back(std::move(tensor));
    }
  }
  return listed;
}

}  // namespace

StateView state_to_save(const StateView& own,
                        const std::vector<std::byte*>& means,
                        StateForm form,
                        const Replicas& replicas,
                        const Differs& differs) {
  Listed listed = list_tensors(own.tensors, form, replicas, differs);
  for (std::size_t i = 0; i < own.slices.size(); ++i) {
    const StateSlice& slice = own.slices[i];
    if (const auto place = listed.plain[slice.tensor]; place && replicas.number() == 0) {
      listed.view.slices.push_back(
          {*place, slice.range, means[i] != nullptr ? means[i] : slice.data});
    }
    if (const auto place = listed.own[slice.tensor]) {
      listed.view.slices.push_back({*place, slice.range, slice.data});
    }
  }
  return std::move(listed.view);
}

StateView state_to_fill(const StateView& own,
                        StateForm form,
                        const Replicas& replicas,
                        const Differs& differs) {
  Listed listed = list_tensors(own.tensors, form, replicas, differs);
  for (const StateSlice& slice : own.slices) {
    const auto mine = listed.own[slice.tensor];
    listed.view.slices.push_back(
        {mine ? *mine : *listed.plain[slice.tensor], slice.range, slice.data});
  }
  return std::move(listed.view);
}

std::string ReplicaProgress::to_text() const {
  return Json({{"replicas", engines.size()},
               {"mode", mode},
               {"together", form == StateForm::kTogether},
               {"steps", steps},
               {"since", since},
               {"averagings", averagings},
               {"engines", engines}})
      .dump();
}

ReplicaProgress ReplicaProgress::parse(const std::string& text, int replicas) {
  TRIREME_CHECK(!json_too_deep_at(text),
                "restore(): expected what progress() returned, found JSON of more than {} levels",
                {kMostJsonLevels});
  try {
    const Json json = Json::parse(text);
    ReplicaProgress progress;
    progress.steps = json.at("steps").get<std::int64_t>();
    if (!json.contains("replicas")) {
      progress.form = StateForm::kOneEngine;
      progress.engines.assign(index(replicas), text);
      return progress;
    }
    progress.form = json.at("together").get<bool>() ? StateForm::kTogether : StateForm::kApart;
    progress.mode = json.at("mode").get<std::string>();
    progress.since = json.at("since").get<std::int64_t>();
    progress.averagings = json.at("averagings").get<std::int64_t>();
    progress.engines = json.at("engines").get<std::vector<std::string>>();
    TRIREME_CHECK(progress.engines.size() == index(replicas),
                  "the state is one of {} replicas, found {}: each has moments and weights of its "
                  "own, so load it with as many, or load the weights alone, which are their mean",
                  {progress.engines.size(), replicas});
    TRIREME_CHECK(progress.steps >= 0 && progress.since >= 0 && progress.averagings >= 0,
                  "restore(): expected what progress() returned, where counts are 0 or more");
    return progress;
  } catch (const Json::exception& error) {
    throw ConfigError(concat("restore(): expected what progress() returned: ", error.what()));
  }
}

}  // namespace trireme::detail
