#include "shared_check.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/train/preprocessing_file.h"

namespace trireme::worker {
namespace {

// Every rank's text about a file on every rank; empty ones where nothing is wrong.
std::vector<std::string> exchanged(const std::string& mine, World& world) {
  std::vector<std::string> texts = all_texts(world, mine);
  const bool refused =
      std::any_of(texts.begin(), texts.end(), [](const auto& text) { return !text.empty(); });
  if (refused && world.rank() > 0) {
    // All ranks will refuse the file. Rank 0 says why, whole, before any of them leaves: it does
    // not come to this barrier, and its end is the barrier's.
    try {
      world.barrier().wait();
    } catch (const CommError&) {
      return texts;
    }
  }
  return texts;
}

}  // namespace

SharedCheck shared_check(const std::string& run, bool resumes, World& world) {
  SharedCheck check;
  check.part = world.rank();
  check.parts = world.size();
  const auto processors = static_cast<int>(allowed_cpus().size());
  check.threads = std::max(1, processors / world.local_size());
  check.exchange = [&world](const std::string& mine) { return exchanged(mine, world); };
  const std::string path = detail::concat(run, "/", kPreprocessingFile);
  if (resumes && std::filesystem::exists(path)) {
    try {
      check.known = read_preprocessing(path).checked;
    } catch (const ConfigError&) {
      check.known.clear();  // it is checked again, and the file is written anew
    }
  }
  return check;
}

}  // namespace trireme::worker
