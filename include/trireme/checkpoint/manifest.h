#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/shard/state_view.h"

// What a checkpoint says about itself: RUN/checkpoints/step-00000100/manifest.json. The format is
// specified in docs/checkpoint_format.md.

namespace trireme {

// Texts by name that are kept with a checkpoint, for whoever resumes from it.
using Notes = std::map<std::string, std::string>;

// A data file: safetensors, checksummed in blocks of Manifest::block_bytes.
struct SavedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> checksums;  // XXH3 (64 bits) of each block
};

// Where elements of a tensor are.
struct SavedPart {
  Range range;
  std::size_t file = 0;      // in Manifest::files
  std::uint64_t offset = 0;  // of the first element, in bytes from the start of the file
};

struct SavedTensor {
  StateTensor tensor;
  std::vector<SavedPart> parts;  // by their ranges, which cover every element once
};

struct Manifest {
  static constexpr int kVersion = 1;
  static constexpr const char* kFileName = "manifest.json";

  std::int64_t step = 0;
  std::int64_t sequence = 0;  // its number among all saved into its folder, from 1
  std::int64_t saved_at = 0;  // seconds since 1970, UTC
  int ranks = 1;              // that wrote it
  std::size_t block_bytes = 1 << 20;
  Notes notes;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;

  std::uint64_t size_bytes() const;  // of its files
  const SavedTensor* find(const std::string& kind, const std::string& name) const;

  std::string to_json() const;  // with its own checksum at the end
  // Throws CheckpointError (with `path` and the place) for a text that is not whole, is of another
  // version, or whose tensors are not covered exactly once by parts inside its files.
  static Manifest parse(const std::string& text, const std::string& path);
  // Reads checkpoint/manifest.json.
  static Manifest read(const std::string& checkpoint);
};

}  // namespace trireme
