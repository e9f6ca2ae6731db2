#include "host_text.h"

#include <sys/utsname.h>

#include "trireme/core/counted.h"
#include "trireme/core/machine.h"
#include "trireme/core/proc_files.h"

namespace trireme::bench {

std::string host_text(const std::string& command_line) {
  utsname name{};
  uname(&name);
  const std::string processor = processor_name();
  return std::string(name.sysname) + " " + name.release + ", " +
         detail::counted(allowed_cpus().size(), "processor") + " (" +
         (processor.empty() ? "unknown model" : processor) + ")\n" + command_line + "\n";
}

}  // namespace trireme::bench
