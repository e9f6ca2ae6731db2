#pragma once

#include <string>

// What the kernel says in files of lines "name : value". `root` is put before /proc, for made-up
// machines.

namespace trireme {

// What follows NAME and a colon in such a file, without the white space around it; empty: nothing.
std::string proc_field(const std::string& path, const std::string& name);

// What the processor of this machine is called; where it has no name (arm64), the numbers of its
// maker and part, or the name that goes with them. Empty where the kernel does not say.
std::string processor_name(const std::string& root = "");

}  // namespace trireme
