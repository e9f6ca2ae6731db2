#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

// More levels of arrays and objects than any file of ours has.
inline constexpr int kMostJsonLevels = 64;

// The offset of the bracket at which a JSON text goes deeper than `levels`; nothing if it never
// does. A value of a JSON library is printed, copied and compared by recursion, so a small file of
// nothing but brackets would end the process: such a text is refused before it is parsed. The text
// may be anything; up to where it stops being JSON the answer is right.
std::optional<std::size_t> json_too_deep_at(std::string_view text, int levels = kMostJsonLevels);

// What a JSON library says is wrong, without its own name for that ("[json.exception. ...] ").
std::string without_json_name(const std::string& what);

}  // namespace trireme
