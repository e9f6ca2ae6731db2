#include "train/compression_choice.h"

#include "trireme/core/concat.h"
#include "trireme/settings/values.h"
#include "trireme/train/automatic_compression.h"

namespace trireme::detail {

std::shared_ptr<const Compressor> compressor_of(
    const TrainSettings& settings,
    World& world,
    const std::function<void(const std::string&)>& say) {
  std::string name = settings.compress;
  if (name == "auto") {
    // Gradients travel inside replicas, and what is measured is the network between all ranks.
    const CompressionChoice choice =
        settings.sync != Synchronisation::kExact
            ? CompressionChoice{.name = "none",
                                .why = trains_stale(settings) ? "ranks are not in step (--sync)"
                                                              : "replicas are averaged (--sync)"}
            : automatic_compression(settings, world);
    name = choice.name;
    say(concat("compress auto: {}, since {}", {choice.name, choice.why}));
  } else if (name != "none" && world.one_machine()) {
    say(
        concat("compress: all ranks are on one machine, where {} saves nothing and takes time: it "
               "is useful here only for the result of a run across machines",
               {name}));
  }
  if (name == "none") {
    return nullptr;
  }
  auto compressor = make_compressor(name);
  if (compressor->format().feedback && settings.optimizer.starts_with("adam")) {
    say(concat(
        "warning: {} and {}: the second moments are those of the compressed gradients; begin "
        "with a smaller learning rate (warm_up), or use sgd",
        {name, settings.optimizer}));
  }
  return compressor;
}

}  // namespace trireme::detail
