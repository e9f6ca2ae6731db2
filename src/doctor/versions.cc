#include "doctor/versions.h"

#include <filesystem>
#include <locale>
#include <sstream>

#include <dlfcn.h>
#include <unistd.h>

#include "comm/transport/transport_module.h"
#include "doctor/ask_program.h"
#include "trireme/core/error.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

std::string compiler_name() {
#if defined(__clang__)
  return concat("Clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#elif defined(__GNUC__)
  return concat("GCC ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

// In a child process: UCX takes over signals and memory functions of whoever loads it.
std::string find_ucx() {
  const Answer answer = ask_child([]() -> std::string {
    void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    void* function = library != nullptr ? dlsym(library, "ucp_get_version_string") : nullptr;
    return function != nullptr ? reinterpret_cast<const char* (*)()>(function)() : "";
  });
  return answer.code == 0 ? answer.text : "";
}

// In a child process: two kinds of MPI cannot be in one.
bool has_mpi_module(const std::string& name) {
  const Answer answer = ask_child([&]() -> std::string {
    try {
      module_function(name, kMakeMpiTransport, "", /*shares=*/true);
      return "yes";
    } catch (const ConfigError&) {
      return "no";
    }
  });
  return answer.code == 0 && answer.text == "yes";
}

// Loads LibTorch, which takes half a second, and measures a few milliseconds.
std::string find_worker_trouble(Versions& versions) {
  std::error_code error;
  const auto path =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "trireme-worker";
  if (access(path.c_str(), X_OK) != 0) {
    return concat(path.string(), " is not there");
  }
  constexpr Milliseconds kTimeToAnswer{60'000};  // also where many other programs run
  const Answer answer = ask_program({path.string(), "precisions"}, kTimeToAnswer);
  if (answer.code == 0) {
    parse_precisions(answer.text, versions);
    return {};
  }
  if (answer.code == -1 && answer.text.empty()) {
    return concat(path.string(), " has crashed, or did not answer within a minute");
  }
  return concat(path.string(),
                " does not start: ",
                answer.text.empty() ? concat("exit code ", answer.code)
                                    : answer.text.substr(0, answer.text.find('\n')));
}

}  // namespace

MpiVersion parse_mpi_version(const std::string& text) {
  constexpr char kOpenMpi[] = "(Open MPI) ";  // mpirun (Open MPI) 4.1.4
  if (const auto at = text.find(kOpenMpi); at != std::string::npos) {
    std::istringstream rest(text.substr(at + sizeof(kOpenMpi) - 1));
    std::string number;
    rest >> number;
    return {"Open MPI", number};
  }
  constexpr char kMpich[] = "HYDRA build details:";  // then a line "Version:   4.0.2"
  if (const auto at = text.find(kMpich); at != std::string::npos) {
    std::istringstream rest(text.substr(at + sizeof(kMpich) - 1));
    std::string label;
    std::string number;
    rest >> label >> number;
    return label == "Version:" ? MpiVersion{"MPICH", number} : MpiVersion{};
  }
  return {};
}

void parse_precisions(const std::string& text, Versions& versions) {
  std::istringstream words(text);
  words.imbue(std::locale::classic());
  std::string name;
  double slowdown = 0;
  while (words >> name >> slowdown) {
    double& place = name == "bfloat16" ? versions.bfloat16_slowdown : versions.float16_slowdown;
    if ((name == "bfloat16" || name == "float16") && slowdown > 0) {
      place = slowdown;
    }
  }
}

Versions find_versions() {
  Versions versions;
  versions.trireme = TRIREME_VERSION;
  versions.libtorch = TRIREME_TORCH_VERSION;
  versions.compiler = compiler_name();
  versions.ucx = find_ucx();
  // A machine may have both, of which one has the plain name.
  for (const char* program : {"mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich"}) {
    if (versions.open_mpi.empty() || versions.mpich.empty()) {
      const MpiVersion found = parse_mpi_version(ask_program({program, "--version"}).text);
      std::string& place = found.name == "MPICH" ? versions.mpich : versions.open_mpi;
      place = place.empty() ? found.number : place;
    }
  }
  versions.open_mpi_module = !versions.open_mpi.empty() && has_mpi_module("mpi_openmpi");
  versions.mpich_module = !versions.mpich.empty() && has_mpi_module("mpi_mpich");
  if (!versions.libtorch.empty()) {
    versions.worker_trouble = find_worker_trouble(versions);
  }
  return versions;
}

}  // namespace trireme::detail
