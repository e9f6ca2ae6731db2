#include "host_text.h"

#include <fstream>

#include <sys/utsname.h>

#include "trireme/core/counted.h"
#include "trireme/core/machine.h"

namespace trireme::bench {
namespace {

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown model";
}

}  // namespace

std::string host_text(const std::string& command_line) {
  utsname name{};
  uname(&name);
  return std::string(name.sysname) + " " + name.release + ", " +
         detail::counted(allowed_cpus().size(), "processor") + " (" + processor_model() + ")\n" +
         command_line + "\n";
}

}  // namespace trireme::bench
