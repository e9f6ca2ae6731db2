#include "comm/transport/transport_module.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr char kModuleVariable[] = "TRIREME_MPI";

std::string kind_of(const std::string& launcher) {
  if (const auto given = env_string(kModuleVariable)) {
    return *given;
  }
  TRIREME_CHECK(
      launcher.starts_with("mpirun") || launcher.starts_with("mpiexec") || launcher == "srun",
      "the backend mpi is for programs started by mpirun, mpiexec or srun, but this one was "
      "started by {}: start it with one of them, or use another backend (TRIREME_BACKEND)",
      {launcher == "none" ? "none of them" : launcher});
  return launcher == "mpiexec (MPICH)" ? "mpich" : "openmpi";
}

// Where a module may be: beside the program, where it was built, where it was installed.
std::vector<std::string> places_of(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return {name};
  }
  const std::string file = concat("trireme_", name, ".so");
  std::vector<std::string> places;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    places.push_back((program.parent_path() / file).string());
    places.push_back((program.parent_path() / "../lib/trireme" / file).string());
  }
  places.push_back(concat(TRIREME_BUILD_MODULES, "/", file));
  places.push_back(concat(TRIREME_INSTALLED_MODULES, "/", file));
  return places;
}

// As MPI has it, which loads parts of its own.
template <class Function>
Function load(const std::string& name, const char* function, const std::string& missing) {
  return reinterpret_cast<Function>(module_function(name, function, missing, true));
}

// What UCX reads when it is loaded; what the user has set counts.
void prepare_for_ucx() {
  // Signals are the program's own affair.
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_DEBUG_SIGNO", "", 0);
  // What fails is reported by whoever waits for it; UCX would print it on its own, and warn of the
  // receives that a rank has left when it leaves.
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  // When it is loaded, UCX writes into the code of mmap, munmap, brk, sbrk and others, and moves
  // the end of the heap to see that it is told of it. It takes for granted that there are no other
  // threads yet; here there may be, and their memory was found corrupted (1.16, x86-64). Only its
  // table of memory that a network card knows needs it.
  setenv("UCX_MEM_EVENTS", "n", 0);
  // Fewer system calls, and copies that stay in the cache: a third faster than 64 KiB for long
  // messages. A message that goes at once fits into one segment with its headers: where it is in
  // two and the connection is reset between them, UCX (1.13) ends the process.
  const std::string segment = std::to_string(kUcxPieceBytes + (16 << 10));
  setenv("UCX_TCP_TX_SEG_SIZE", segment.c_str(), 0);
  setenv("UCX_TCP_RX_SEG_SIZE", segment.c_str(), 0);
}

}  // namespace

void* module_function(const std::string& name,
                      const char* function,
                      const std::string& missing,
                      bool shares) {
  const std::vector<std::string> places = places_of(name);
  for (const std::string& place : places) {
    if (access(place.c_str(), R_OK) != 0) {
      continue;
    }
    void* module = dlopen(place.c_str(), RTLD_NOW | (shares ? RTLD_GLOBAL : RTLD_LOCAL));
    TRIREME_CHECK(module != nullptr, "the module ", place, " cannot be loaded: ", dlerror());
    void* found = dlsym(module, function);
    TRIREME_CHECK(found != nullptr, place, " is not such a module of Trireme (", function, ")");
    return found;
  }
  throw ConfigError(
      concat("there is no module ", name, " (looked for ", listed(places), "): ", missing));
}

std::shared_ptr<Transport> load_ucx_transport(const UcxOptions& options,
                                              const ExchangeBytes& exchange) {
  prepare_for_ucx();
  const auto make = load<MakeUcxTransport>(
      "ucx", kMakeUcxTransport, "build Trireme where UCX (libucx-dev) is installed");
  std::string failure;
  std::shared_ptr<Transport> transport(make(options, exchange, &failure));
  TRIREME_CHECK(transport != nullptr, failure);
  return transport;
}

std::shared_ptr<Transport> load_mpi_transport(const std::string& launcher) {
  const std::string kind = kind_of(launcher);
  const auto make =
      load<MakeMpiTransport>(kind.find('/') == std::string::npos ? "mpi_" + kind : kind,
                             kMakeMpiTransport,
                             concat("build Trireme where this MPI's mpicc is installed, or set ",
                                    kModuleVariable,
                                    " to openmpi, mpich or the module's path"));
  std::string failure;
  std::shared_ptr<Transport> transport(make(&failure));
  TRIREME_CHECK(transport != nullptr, "MPI (", kind, ") could not be started: ", failure);
  return transport;
}

}  // namespace trireme::detail
