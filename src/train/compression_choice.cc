#include "train/compression_choice.h"

#include "trireme/core/concat.h"

namespace trireme::detail {

std::shared_ptr<const Compressor> compressor_of(
    const TrainSettings& settings,
    const World& world,
    const std::function<void(const std::string&)>& say) {
  std::string name = settings.compress;
  if (name == "auto" && world.one_machine()) {
    say("compress auto: none, since all ranks are on one machine and read each other's gradients "
        "in "
        "memory: there is nothing to send");
    name = "none";
  } else if (name == "auto") {
    say(concat("compress auto: bf16, since gradients travel between {} machines",
               {world.machines()}));
    name = "bf16";
  } else if (name != "none" && world.one_machine()) {
    say(
        concat("compress: all ranks are on one machine, where {} saves nothing and takes time: for "
               "the same result as between machines only",
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
