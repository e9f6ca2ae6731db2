#include <cstdio>
#include <vector>

#include <unistd.h>

#include "checkpoint_place.h"
#include "ckpt.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/progress_line.h"

namespace trireme::tools {
namespace {

// False where something is wrong.
bool verify_one(const std::string& path) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::uint64_t size = 0;
  const std::vector<std::string> wrong =
      verify_checkpoint(path, [&](std::uint64_t seen, std::uint64_t bytes) {
        size = bytes;
        if (terminal) {
          std::fprintf(stderr,
                       "\r%s of %s ",
                       megabytes_text(static_cast<std::int64_t>(seen)).c_str(),
                       megabytes_text(static_cast<std::int64_t>(bytes)).c_str());
        }
      });
  if (terminal) {
    std::fputs("\r\033[K", stderr);
  }
  if (wrong.empty()) {
    std::printf("%s: all %s are as they were saved\n",
                path.c_str(),
                megabytes_text(static_cast<std::int64_t>(size)).c_str());
    return true;
  }
  std::printf("%s: %zu %s wrong\n",
              path.c_str(),
              wrong.size(),
              wrong.size() == 1 ? "thing is" : "things are");
  for (const std::string& each : wrong) {
    std::printf("  %s\n", each.c_str());
  }
  return false;
}

}  // namespace

int verify_checkpoints(const VerifyOptions& options) {
  TRIREME_CHECK(!options.all || !options.step, "verify: --all and --step are mutually exclusive");
  if (!options.all || is_checkpoint(options.place)) {
    return verify_one(checkpoint_at(options.place, options.step)) ? kExitOk : 1;
  }
  const CheckpointFolder folder(checkpoints_of(options.place));
  bool good = true;
  for (const std::int64_t step : folder.steps()) {
    good = verify_one(folder.path_of(step)) && good;
  }
  return good ? kExitOk : 1;
}

}  // namespace trireme::tools
