#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"

namespace trireme {

// What the names and shapes of a model's tensors do not tell. Kept with them: as notes of a
// checkpoint, as metadata of a safetensors file.
struct ModelNotes {
  // Which of a file's tensors are buffers.
  std::optional<std::vector<std::string>> buffers;
  // Modules that hold no tensors (a Dropout), for which torch::load looks all the same.
  std::optional<std::vector<std::string>> empty_modules;
  // Other names of parameters that modules share, with the name a checkpoint has them under.
  std::map<std::string, std::string> aliases;

  // "buffers", "empty_modules" and "aliases", each as JSON, where they are known.
  Notes to_notes() const;
  // Reads those, among others. Throws DataError with `path` where one is not what it should be.
  static ModelNotes from(const Notes& notes, const std::string& path);
};

}  // namespace trireme
