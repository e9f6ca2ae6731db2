#include "checkpoint/safetensors_format.h"

#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"

namespace trireme {

std::int64_t TensorEntry::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    product *= size;
  }
  return product;
}

namespace detail {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct DtypeName {
  Dtype dtype;
  const char* name;
};
constexpr DtypeName kDtypeNames[] = {{Dtype::kFloat32, "F32"},
                                     {Dtype::kFloat64, "F64"},
                                     {Dtype::kFloat16, "F16"},
                                     {Dtype::kBFloat16, "BF16"},
                                     {Dtype::kInt32, "I32"},
                                     {Dtype::kInt64, "I64"},
                                     {Dtype::kUint8, "U8"},
                                     {Dtype::kInt8, "I8"},
                                     {Dtype::kInt16, "I16"},
                                     {Dtype::kBool, "BOOL"}};

}  // namespace

const char* file_name_of(Dtype dtype) {
  for (const DtypeName& entry : kDtypeNames) {
    if (entry.dtype == dtype) {
      return entry.name;
    }
  }
  throw InternalError("a dtype without a name in safetensors");
}

std::optional<Dtype> dtype_called(std::string_view name) {
  for (const DtypeName& entry : kDtypeNames) {
    if (name == entry.name) {
      return entry.dtype;
    }
  }
  return std::nullopt;
}

std::string safetensors_header(const std::string& path,
                               const std::vector<TensorEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  std::unordered_set<std::string> names;
  std::size_t offset = 0;
  // Put together by hand: an ordered object of the library looks through all names for each.
  std::string text = "{";
  try {
    if (!metadata.empty()) {
      text += OrderedJson(kMetadata).dump() + ":" + OrderedJson(metadata).dump();
    }
    for (const TensorEntry& entry : entries) {
      TRIREME_CHECK(names.insert(entry.name).second, "two tensors are called ", entry.name);
      TRIREME_CHECK(entry.name != kMetadata, "a tensor cannot be called ", kMetadata);
      TRIREME_CHECK(std::ranges::all_of(entry.shape, [](std::int64_t size) { return size >= 0; }),
                    "tensor {} has a negative size",
                    {entry.name});
      const std::size_t end = offset + entry.size_bytes();
      const OrderedJson about = {{"dtype", file_name_of(entry.dtype)},
                                 {"shape", entry.shape},
                                 {"data_offsets", {offset, end}}};
      text += (text.size() > 1 ? "," : "") + OrderedJson(entry.name).dump() + ":" + about.dump();
      offset = end;
    }
  } catch (const OrderedJson::type_error& error) {
    throw ConfigError(concat("\"", path, "\": expected names in UTF-8: ", error.what()));
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  }
  return length + text;
}

}  // namespace detail
}  // namespace trireme
