#pragma once

#include <cstdint>
#include <string>

#include "doctor/finding.h"

namespace trireme::detail {

// What a disk did with a file.
struct DiskSpeed {
  std::string folder;
  std::string trouble;  // why it could not be measured; empty where it was
  double bytes_per_second = 0;
  bool past_cache = false;  // the file system can write past the page cache
  std::uint64_t free_bytes = 0;
};

// Writes a file of `bytes` to the folder, waits until it is on disk, and takes five seconds at
// most. The file has no name any more when its first byte is written, so that none is ever left.
DiskSpeed measure_disk(const std::string& folder, std::uint64_t bytes = 64 << 20);

Finding judge_disk(const DiskSpeed& disk);

}  // namespace trireme::detail
