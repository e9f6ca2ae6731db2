#pragma once

#include <string>

namespace trireme::bench {

// "4 KiB", "64 MiB".
std::string bytes_text(long long bytes);
// Three significant digits.
std::string number_text(double value);

}  // namespace trireme::bench
