#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/span.h"

namespace trireme {

// A tensor of a file: what it is called and what it looks like.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;

  std::int64_t numel() const;
  std::size_t size_bytes() const { return static_cast<std::size_t>(numel()) * dtype_bytes(dtype); }
};

// Writes a file in the format of safetensors: 8 bytes with the length of a JSON header, the header,
// the tensors' bytes. Tensors are handed over one at a time, in the order of the entries, so that
// nobody ever holds all of them. The file appears under its name when it is complete and on disk,
// and not at all otherwise. Throws Error with file and reason (a full disk).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path,
                    std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();  // without finish(): removes what was written

  void write(const ConstSpan& values);  // of the next entry
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads such a file, mapped. Throws DataError (file, offset, expected, found) for one that is
// truncated, has a broken header (no JSON, a name twice, more than 100 MB, nested without need), or
// whose tensors do not fill it exactly. Takes time that grows with the header, whatever is in it.
class SafetensorsFile {
 public:
  // Tensors for which `skipped` says so are left out, and may be of any type.
  explicit SafetensorsFile(const std::string& path,
                           const std::function<bool(const std::string& name)>& skipped = {});
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::vector<TensorEntry>& entries() const;  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const;
  // The values of a tensor, valid as long as this lives; throws ConfigError if there is none of
  // this name.
  ConstSpan tensor(const std::string& name) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
