#pragma once

#include <string>

// Writing that a loss of power does not undo.

namespace trireme::detail {

// The names in a folder are on disk: a folder is a file, too.
void sync_folder(const std::string& folder);

// A small file, whole or not at all, and on disk when this returns. Throws CheckpointError.
void write_durably(const std::string& path, const std::string& text);

}  // namespace trireme::detail
