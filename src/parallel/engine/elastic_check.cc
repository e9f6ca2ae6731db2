#include "parallel/engine/elastic_check.h"

#include <string>

#include <torch/nn/module.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/parallel/sync_batch_norm.h"

namespace trireme::detail {
namespace {

bool refuses_changes() {
  return env_string(kEnvRanksMayChange) == "on";
}

[[noreturn]] void refuse_changes(const std::string& what) {
  throw ConfigError(
      concat("{}: the result depends on the number of ranks, which may change in this job "
             "(--elastic MIN:MAX): leave it out, keep the number (--restart N alone), or allow it "
             "(--allow-changes)",
             {what}));
}

}  // namespace

void check_elastic_engine(const EngineOptions& options, torch::nn::Module& model) {
  if (!refuses_changes()) {
    return;
  }
  if (options.gradient_hook) {
    refuse_changes("EngineOptions::gradient_hook");
  }
  if (options.sum_order == SumOrder::kLocalFirst) {
    refuse_changes("EngineOptions::sum_order kLocalFirst");
  }
  for (const auto& module : model.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    if (module.value()->as<SyncBatchNormImpl>() != nullptr) {
      refuse_changes(concat("SyncBatchNorm (module \"", module.key(), "\")"));
    }
  }
}

void check_elastic(const std::string& what) {
  if (refuses_changes()) {
    refuse_changes(what);
  }
}

}  // namespace trireme::detail
