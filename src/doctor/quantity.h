#pragma once

#include <cstdint>
#include <string>

namespace trireme::detail {

// Three significant digits: "0.312", "31.2", "312", "31200".
std::string number_text(double value);

// "512 B", "64.0 MiB", "1.50 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace trireme::detail
