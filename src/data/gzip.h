#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/mapped_file.h"

namespace trireme::detail {

bool is_gzip(const MappedFile& file);
// "corpus.txt.gz". Of other names the first bytes prove nothing: those of gzip are a token, too.
bool is_packed_name(const std::string& path);
std::string without_gz(const std::string& path);

// The file itself; of a gzip file (by its name) what it holds, unpacked into memory.
MappedFile plain_file(const std::string& path);

// Unpacks a gzip file piece by piece; nothing is allocated that depends on what the file says.
class GzipStream {
 public:
  explicit GzipStream(const MappedFile& file);
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream();

  // Fills `out` as far as the stream goes and returns how much that was. Throws DataError for a
  // file that is cut short or damaged.
  std::int64_t read(std::span<std::byte> out);

  // No stream of this many packed bytes unpacks to more.
  static std::int64_t largest_content(std::int64_t packed_bytes);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::detail
