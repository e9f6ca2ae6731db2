#include <unistd.h>

#include "peers.h"
#include "test_bed.h"
#include "trireme/core/environment.h"

namespace trireme::bench {
namespace {

// A script of PyTorch's ranks, once on each machine, over Gloo; `arguments` come after the script.
Peer torch_peer_on(const TestBed& bed,
                   const std::string& name,
                   const std::string& script,
                   const std::vector<std::string>& arguments,
                   int ranks,
                   const std::string& interfaces,
                   const std::string& meeting) {
  Peer peer{name, "", {}};
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  if (access(python.c_str(), X_OK) != 0) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
    return peer;
  }
  for (int k = 0; k < bed.size(); ++k) {
    std::vector<std::string> words = {
        "env", "GLOO_SOCKET_IFNAME=" + interfaces, python, TRIREME_PEERS_SOURCE "/" + script};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {std::to_string(k * ranks), std::to_string(ranks), meeting});
    peer.on_machines.push_back(bed.on(k, words));
  }
  return peer;
}

std::string or_first(const std::string& interfaces) {
  return interfaces.empty() ? "eth0" : interfaces;
}

}  // namespace

std::vector<Peer> collective_peers_on(const TestBed& bed,
                                      int ranks,
                                      const std::string& interfaces,
                                      const std::vector<std::string>& cases,
                                      const std::string& meeting,
                                      const std::string& output) {
  std::vector<std::string> what = {output};
  what.insert(what.end(), cases.begin(), cases.end());
  const std::string world = std::to_string(bed.size() * ranks);
  std::vector<std::string> of_gloo = what;
  of_gloo.insert(of_gloo.begin(), world);
  const Peer gloo = torch_peer_on(
      bed, "gloo", "gloo_collectives.py", of_gloo, ranks, or_first(interfaces), meeting);
  Peer mpi{"mpi", "", {}};
  const std::string program = TRIREME_PEERS_BUILD "/mpi_collectives";
  if (access(program.c_str(), X_OK) == 0) {
    std::vector<std::string> words = what;
    words.insert(words.begin(), program);
    words.push_back(world);
    mpi.on_machines = {bed.under_mpirun(ranks, or_first(interfaces), {}, words)};
  } else {
    mpi.missing = "built without MPI (install libopenmpi-dev and build again)";
  }
  std::vector<Peer> peers = {gloo, mpi};
  if (bed.size() == 2 && ranks == 1) {
    Peer tcp{"tcp", "", {}};
    for (int k = 0; k < bed.size(); ++k) {
      std::vector<std::string> words = what;
      words.insert(words.begin(), TRIREME_PEERS_BUILD "/tcp_collectives");
      words.insert(words.end(), {std::to_string(k), bed.address(0)});
      tcp.on_machines.push_back(bed.on(k, words));
    }
    peers.push_back(std::move(tcp));
  }
  return peers;
}

Peer step_peer_on(const TestBed& bed,
                  const std::string& name,
                  int ranks,
                  int setting,
                  const std::string& meeting,
                  const std::string& output) {
  const std::vector<std::string> arguments = {
      name, std::to_string(bed.size() * ranks), std::to_string(setting), output};
  return torch_peer_on(bed, name, "torch_step.py", arguments, ranks, "eth0", meeting);
}

}  // namespace trireme::bench
