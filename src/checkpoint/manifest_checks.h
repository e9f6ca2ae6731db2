#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"

namespace trireme::detail {

// Whether the strides put every element of a tensor of this shape at a place of its own, without
// holes.
bool are_dense(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides);

// Throws CheckpointError (of `path`) where a manifest contradicts itself: tensors that are not
// covered exactly once, parts outside of their files, names that lead out of the folder.
void check_manifest(const Manifest& manifest, const std::string& path);

}  // namespace trireme::detail
