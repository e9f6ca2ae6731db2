#pragma once

#include <string>

// Writing that a loss of power does not undo.

namespace trireme::detail {

// The names in a folder are on disk: a folder is a file, too. Throws CheckpointError.
void sync_folder(const std::string& folder);

// A folder's own name is on disk, and those of the folders above it, whoever has just made them: up
// to where its file system is mounted. Throws CheckpointError.
void sync_folders_above(const std::string& folder);

// A small file, whole or not at all. Nothing is done with its folder once the name is there:
// whoever reads the file may rename the folder at once. Throws CheckpointError.
void write_whole(const std::string& path, const std::string& text);

// The same, and the name is on disk when this returns. Throws CheckpointError.
void write_durably(const std::string& path, const std::string& text);

}  // namespace trireme::detail
