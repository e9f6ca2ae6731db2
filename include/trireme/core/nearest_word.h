#pragma once

#include <string>
#include <vector>

namespace trireme {

// The candidate that differs least from `word`: few letters changed, left out, put in or swapped
// with a neighbour. Empty where none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace trireme
