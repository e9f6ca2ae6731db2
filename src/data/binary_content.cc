#include "data/binary_content.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/data_failure.h"
#include "data/gzip.h"
#include "data/text_lines.h"

namespace trireme::detail {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kLookedAt = std::size_t{1} << 16;
constexpr const char* kWhatToDo =
    ": unpack or convert it first, or give --format text to take its bytes as they are";

struct Beginning {
  std::string_view bytes;
  const char* what;
};

constexpr std::string_view kGzip = "\x1f\x8b\x08"sv;

constexpr Beginning kBeginnings[] = {
    {"PK\x03\x04"sv, "a zip archive"},
    {"PAR1"sv, "a Parquet file"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {kGzip, "a gzip file (its name should end with .gz)"},
    {"\xfd"
     "7zXZ\0"sv,
     "an xz file"},
    {"\x28\xb5\x2f\xfd"sv, "a zstd file"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"},
    {"\x89HDF\r\n"sv, "an HDF5 file"},
    {"ARROW1"sv, "an Arrow file"},
    {"SQLite format 3\0"sv, "a SQLite database"},
    {"%PDF-"sv, "a PDF document"},
    {"\x89PNG"sv, "a PNG picture"},
    {"\xff\xd8\xff"sv, "a JPEG picture"},
};

std::vector<char> beginning_of(const std::string& path) {
  const MappedFile file(path);
  if (!is_packed_name(path)) {
    const auto size = std::min<std::int64_t>(file.size(), kLookedAt);
    return {file.begin(), file.begin() + size};
  }
  std::vector<char> bytes(kLookedAt);
  const std::int64_t size = GzipStream(file).read(std::as_writable_bytes(std::span(bytes)));
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

}  // namespace

void refuse_binary(const std::string& path) {
  const std::vector<char> bytes = beginning_of(path);
  const std::string_view text(bytes.data(), bytes.size());
  if (is_packed_name(path) && text.starts_with(kGzip)) {
    throw_data_error(path, 0, packed_twice_problem());
  }
  for (const Beginning& each : kBeginnings) {
    if (text.starts_with(each.bytes)) {
      throw_data_error(path, 0, "expected text, found ", each.what, kWhatToDo);
    }
  }
  if (text.starts_with("BZh") && text.substr(0, 10).find("1AY&SY") != std::string_view::npos) {
    throw_data_error(path, 0, "expected text, found a bzip2 file", kWhatToDo);
  }
  if (const std::string problem = utf16_problem(text); !problem.empty()) {
    throw_data_error(path, 0, problem);
  }
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw_data_error(path, static_cast<std::int64_t>(zero), zero_byte_problem(), kWhatToDo);
  }
}

}  // namespace trireme::detail
