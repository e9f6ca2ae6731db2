#include <cstdio>
#include <optional>

#include "checkpoint_place.h"
#include "ckpt.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {

int prune_checkpoints(const PruneOptions& options) {
  const CheckpointFolder folder(checkpoints_of(options.place));
  std::optional<FolderLock> lock;
  if (!options.dry_run) {  // which only looks
    try {
      lock.emplace(folder.path());
    } catch (const ConfigError& error) {
      throw ConfigError(detail::concat(
          error.what(), "; a training removes old checkpoints itself (--keep-last, --keep-every)"));
    }
    folder.put_back_replaced();
  }
  const Retention retention{options.keep_last, options.keep_every};
  const std::int64_t newest = folder.newest().value();
  const char* done = options.dry_run ? "would remove" : "removed";
  for (const std::int64_t step :
       options.dry_run ? folder.superfluous(retention, newest) : folder.prune(retention, newest)) {
    std::printf("%s %s\n", done, folder.path_of(step).c_str());
  }
  for (const std::string& name : folder.unfinished()) {
    std::printf("%s %s/%s, which was never finished\n", done, folder.path().c_str(), name.c_str());
  }
  if (!options.dry_run) {
    folder.remove_unfinished();
  }
  const std::size_t kept =
      folder.steps().size() - (options.dry_run ? folder.superfluous(retention, newest).size() : 0);
  std::printf("%zu %s\n", kept, kept == 1 ? "checkpoint stays" : "checkpoints stay");
  return kExitOk;
}

}  // namespace trireme::tools
