#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme::detail {

// The members of a JSON object, in the order of the text.
using JsonMembers = std::vector<std::pair<std::string, nlohmann::json>>;

// What to do about a text that is refused: `at` is the offset of what is wrong, 0 where it is no
// single place. Throws.
using RefuseText = std::function<void(std::size_t at, const std::string& message)>;

// Reads the object that `text` is, in time that grows with its length. (The library's ordered
// object looks through all names for each new one.) Calls `refuse` for what is no JSON, no object,
// deeper than a safetensors header can be, or has a name twice, of which the library would keep the
// last.
JsonMembers read_members(std::string_view text, const RefuseText& refuse);

}  // namespace trireme::detail
