#include "settled_compression.h"

#include <fstream>
#include <sstream>

#include "trireme/comm/tell.h"
#include "trireme/core/concat.h"
#include "trireme/settings/settings_table.h"
#include "trireme/train/automatic_compression.h"

namespace trireme::worker {
namespace {

// Nothing where the run has not recorded it.
std::string recorded_compression(const std::string& run) {
  const std::string path = run + "/config.json";
  std::ifstream file(path);
  if (!file) {
    return "";
  }
  std::ostringstream text;
  text << file.rdbuf();
  const TrainSettings recorded = recorded_settings(text.str(), path);
  return recorded.compress == "auto" ? "" : recorded.compress;
}

}  // namespace

std::string settle_compression(TrainSettings& settings, World& world, bool goes_on) {
  if (settings.compress != "auto") {
    return "";
  }
  std::string name;
  on_all_ranks(world, [&] {
    if (goes_on && world.rank() == 0) {
      name = recorded_compression(settings.run);
    }
  });
  name = all_texts(world, name)[0];
  const CompressionChoice choice = name.empty() ? automatic_compression(settings, world)
                                                : CompressionChoice{name, "the run began with it"};
  settings.compress = choice.name;
  if (choice.name == "none") {
    settings.compress_check = 0;  // there is nothing to compare
  }
  return detail::concat("compress auto: {}, since {}", {choice.name, choice.why});
}

}  // namespace trireme::worker
