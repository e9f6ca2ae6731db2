#pragma once

#include <string>

namespace trireme::detail {

// A file whose name says nothing is taken for text; what it holds has the last word. Throws
// DataError for archives, arrays, pictures and whatever else has bytes that no text has. Of a gzip
// file, what it holds is looked at.
void refuse_binary(const std::string& path);

}  // namespace trireme::detail
