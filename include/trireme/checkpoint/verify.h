#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

// Reads and checks every byte of a checkpoint. Returns all that is wrong, by file and offset: also
// where its manifest is damaged, or where files are missing or cut short, which a CheckpointReader
// refuses. `progress`: called with the bytes seen so far, of how many.
std::vector<std::string> verify_checkpoint(
    const std::string& checkpoint,
    const std::function<void(std::uint64_t seen, std::uint64_t bytes)>& progress = {});

}  // namespace trireme
