#pragma once

#include <string>

namespace trireme::detail {

// Reads every byte of a ZIP file and compares it with its checksums, which LibTorch does not do
// when it opens an archive. Throws DataError with the place of what is damaged, for a file that is
// cut short, and for one that is no ZIP file.
void check_zip_file(const std::string& path);

}  // namespace trireme::detail
