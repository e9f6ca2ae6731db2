#pragma once

#include <string>

namespace trireme::bench {

// Makes the next read of every file under `folder` come from the disk. False where the files stay
// in memory all the same: on a file system that has no disk.
bool drop_from_page_cache(const std::string& folder);

// "ext4", "tmpfs": what `folder` is on.
std::string file_system_of(const std::string& folder);

}  // namespace trireme::bench
