#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

// UCX and MPI are loaded when they are asked for, as modules beside the program: Open MPI and MPICH
// cannot be in one process, UCX takes over signals when it is loaded, and a training on one machine
// needs none of them.

namespace trireme::detail {

// What UCX sends over TCP at once; see Note [pieces] in ucx/ucx_rail.h. A piece of a collective
// fits, with its seal.
inline constexpr std::size_t kUcxPieceBytes = (256 << 10) + 64;

// InfiniBand or one of its kind, also where nothing goes over it.
inline bool has_infiniband() {
  return std::filesystem::exists("/sys/class/infiniband");
}

struct UcxOptions {
  int rank = 0;
  int size = 1;
  // Interfaces to use, all at once: long messages are cut into a part for each. Empty: UCX chooses.
  std::vector<std::string> interfaces;
  // Several of the "machines" are network namespaces of one host, between which shared memory would
  // work and would be wrong.
  bool only_tcp = false;
};

// Through UCX's tagged messages. UCX's own variables (UCX_TLS, UCX_NET_DEVICES, ...) count where
// they are set. Collective; throws ConfigError for an interface that UCX cannot use.
std::shared_ptr<Transport> load_ucx_transport(const UcxOptions& options,
                                              const ExchangeBytes& exchange);

// Through MPI's messages. `launcher` (World::launcher) or TRIREME_MPI (openmpi, mpich, or the path
// of a module) says which MPI. Throws ConfigError where there is none.
std::shared_ptr<Transport> load_mpi_transport(const std::string& launcher);

// The function of a module of any kind, which stays loaded for good; `name` is "ucx" for
// trireme_ucx.so, or a path. `shares`: parts that the module loads look for its symbols among
// everyone's. Throws ConfigError with `missing`, what to do, where there is no such module.
void* module_function(const std::string& name,
                      const char* function,
                      const std::string& missing,
                      bool shares);

// What a module offers; null is a failure.
using MakeUcxTransport = Transport* (*)(const UcxOptions& options,
                                        const ExchangeBytes& exchange,
                                        std::string* failure);
using MakeMpiTransport = Transport* (*)(std::string* failure);
inline constexpr char kMakeUcxTransport[] = "trireme_make_ucx_transport";
inline constexpr char kMakeMpiTransport[] = "trireme_make_mpi_transport";

}  // namespace trireme::detail
