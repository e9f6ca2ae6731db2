#include "trireme/checkpoint/verify.h"

#include "checkpoint/block_file.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/error.h"

namespace trireme {

std::vector<std::string> verify_checkpoint(
    const std::string& checkpoint,
    const std::function<void(std::uint64_t seen, std::uint64_t bytes)>& progress) {
  Manifest manifest;
  try {
    manifest = Manifest::read(checkpoint);
  } catch (const CheckpointError& error) {
    return {error.what()};
  }
  std::vector<std::string> wrong;
  std::uint64_t seen = 0;
  for (const SavedFile& file : manifest.files) {
    try {
      for (std::string& each : detail::BlockFile(checkpoint, file, manifest.block_bytes).verify()) {
        wrong.push_back(std::move(each));
      }
    } catch (const CheckpointError& error) {
      wrong.emplace_back(error.what());
    }
    seen += file.size_bytes;
    if (progress) {
      progress(seen, manifest.size_bytes());
    }
  }
  return wrong;
}

}  // namespace trireme
