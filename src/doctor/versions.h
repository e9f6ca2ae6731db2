#pragma once

#include <string>

namespace trireme::detail {

// Versions of what Trireme is made of and may use; empty where it is not there.
struct Versions {
  std::string trireme;
  std::string libtorch;  // it was built with
  std::string compiler;
  std::string ucx;
  std::string open_mpi;
  std::string mpich;
  // Whether Trireme's module for it can be loaded, without which an MPI is of no use to Trireme.
  bool open_mpi_module = false;
  bool mpich_module = false;
  // Why trireme-worker, which `trireme train` starts, does not run; empty where it does or where
  // there is no LibTorch.
  std::string worker_trouble;
  // How many times as long a matrix product takes in 16 bits as in float32 on this processor, which
  // only LibTorch can tell; 0: not known.
  double bfloat16_slowdown = 0;
  double float16_slowdown = 0;
};

// Asks the libraries and programs of this machine.
Versions find_versions();

// The version in what `mpirun --version` says: "Open MPI" or "MPICH", and its number; both empty
// where it is neither.
struct MpiVersion {
  std::string name;
  std::string number;
};
MpiVersion parse_mpi_version(const std::string& text);

// Takes the slowdowns from what "trireme-worker precisions" says; any other text says nothing.
void parse_precisions(const std::string& text, Versions& versions);

}  // namespace trireme::detail
