#include "job_settings.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "trireme/comm/elastic.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/settings/settings_table.h"

namespace trireme::worker {

using detail::concat;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  TRIREME_CHECK(file.good(), "\"", path, "\" could not be read");
  return text.str();
}

std::string given_settings() {
  const auto path = env_string(kEnvTrainSettings);
  TRIREME_CHECK(path,
                "expected settings at the path in ",
                kEnvTrainSettings,
                ", found no such variable: it is trireme train that starts this program");
  return text_of(*path);
}

void warn_of_other_settings(const TrainSettings& settings, const World& world) {
  static bool looked = false;
  const auto path = env_string(kEnvTrainSettings);
  if (std::exchange(looked, true) || world.rank() == 0 || world.local_rank() != 0 || !path) {
    return;
  }
  TrainSettings own;
  try {
    apply_json(own, text_of(*path), "the settings of this machine");
    own.ranks = settings.ranks;
    own = resolve(own);
  } catch (const ConfigError&) {
    return;  // it may have been for other ranks
  }
  std::string others;
  for (const Setting& setting : settings_table()) {
    // Folders may go by another name here, and each launcher has a timeout of its own.
    if (setting.name != "run" && setting.name != "started_in" && setting.name != "timeout" &&
        setting.to_json(own) != setting.to_json(settings)) {
      others += concat("{}{} is {}, not {}",
                       {others.empty() ? "" : "; ",
                        setting.flag(),
                        value_text(setting.name, settings),
                        value_text(setting.name, own)});
    }
  }
  if (!others.empty()) {
    log(LogLevel::kWarning,
        concat("the command of this machine has settings other than the job's, which apply: ",
               others));
  }
}

}  // namespace trireme::worker
