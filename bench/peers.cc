#include "peers.h"

#include <csignal>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/machine.h"

namespace trireme::bench {
namespace {

// No turn takes as long: a whole training of a convnet is a fifth of it.
constexpr std::chrono::minutes kLongest{30};
constexpr std::chrono::milliseconds kMoment{50};

bool exists(const std::string& path) {
  return access(path.c_str(), X_OK) == 0;
}

// Asked once, however many rows a table has: without a network, pip takes minutes to give up.
bool deepspeed_is_there(const std::string& folder, const std::string& torch_version) {
  static const int code =
      run_command({TRIREME_PEERS_SOURCE "/install_deepspeed", folder, torch_version});
  return code == 0;
}

}  // namespace

std::vector<Peer> collective_peers(int ranks,
                                   const std::vector<std::string>& cases,
                                   const std::string& output) {
  const std::string count = std::to_string(ranks);
  Peer gloo{"gloo", "", {}};
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  if (exists(python)) {
    gloo.command = {python, TRIREME_PEERS_SOURCE "/gloo_collectives.py", count, output};
    gloo.command.insert(gloo.command.end(), cases.begin(), cases.end());
  } else {
    gloo.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
  }
  Peer mpi{"mpi", "", {}};
  const std::string program = TRIREME_PEERS_BUILD "/mpi_collectives";
  if (exists(program)) {
    mpi.command = {"mpirun", "-n", count};
    if (geteuid() == 0) {
      mpi.command.emplace_back("--allow-run-as-root");
    }
    if (ranks > static_cast<int>(allowed_cpus().size())) {
      // Without it Open MPI spins while the rank it waits for has no processor.
      for (const char* word : {"--oversubscribe", "--mca", "mpi_yield_when_idle", "1"}) {
        mpi.command.emplace_back(word);
      }
    } else {
      mpi.command.insert(mpi.command.end(), {"--bind-to", "core"});
    }
    mpi.command.insert(mpi.command.end(), {program, output});
    mpi.command.insert(mpi.command.end(), cases.begin(), cases.end());
    mpi.command.push_back(count);
  } else {
    mpi.missing = "built without MPI (install libopenmpi-dev and build again)";
  }
  return {gloo, mpi};
}

Peer step_peer(const std::string& name,
               int ranks,
               int setting,
               const std::string& torch_version,
               const std::string& output) {
  Peer peer{name, "", {}};
  std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  std::string script = TRIREME_PEERS_SOURCE "/torch_step.py";
  if (name.rfind("deepspeed", 0) == 0) {
    const std::string folder = TRIREME_PEERS_BUILD "/deepspeed";
    if (!deepspeed_is_there(folder, torch_version)) {
      peer.missing = "pip install deepspeed failed (no network?)";
      return peer;
    }
    python = folder + "/bin/python";
    script = TRIREME_PEERS_SOURCE "/deepspeed_step.py";
    // Where it looks for ninja when it builds its operators.
    const std::string path = env_string("PATH").value_or("");
    if (path.rfind(folder, 0) != 0) {
      setenv("PATH", (folder + "/bin:" + path).c_str(), 1);
    }
  }
  if (!exists(python)) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
    return peer;
  }
  peer.command = {python, script, name, std::to_string(ranks), std::to_string(setting), output};
  return peer;
}

Peer train_peer_command(const std::string& run,
                        const std::string& output,
                        const std::string& layout) {
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  const std::string script = TRIREME_PEERS_SOURCE "/torch_train.py";
  Peer peer{"PyTorch", "", {python, script, run, output, layout}};
  if (!exists(python)) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
  }
  return peer;
}

Peer gpu_step_peer(const std::string& name,
                   const std::string& setting,
                   int steps,
                   const std::string& output) {
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  const std::string script = TRIREME_PEERS_SOURCE "/torch_gpu_step.py";
  Peer peer{name, "", {python, script, name, setting, std::to_string(steps), output}};
  if (!exists(python)) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
  }
  return peer;
}

Peer checkpoint_peer(const std::string& name,
                     int ranks,
                     const std::string& state,
                     const std::string& folder,
                     const std::string& output) {
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  const std::string script = TRIREME_PEERS_SOURCE "/checkpoint_peers.py";
  Peer peer{name, "", {python, script, name, std::to_string(ranks), state, folder, output}};
  if (!exists(python)) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
  }
  return peer;
}

Peer elastic_peer(int ranks, int restarts, int setting, int every, const std::string& folder) {
  constexpr const char* kMostSteps = "1000000";
  const std::string python = env_string("TRIREME_PYTHON").value_or(TRIREME_PYTHON);
  Peer peer{"torchrun",
            "",
            {python,
             "-m",
             "torch.distributed.run",
             "--nproc-per-node",
             std::to_string(ranks),
             "--max-restarts",
             std::to_string(restarts),
             "--rdzv-backend",
             "c10d",
             "--rdzv-endpoint",
             "127.0.0.1:0",
             std::string(TRIREME_PEERS_SOURCE) + "/torch_elastic.py",
             folder,
             kMostSteps,
             std::to_string(every),
             std::to_string(setting)}};
  if (!exists(python)) {
    peer.missing = "no python with torch at " + python + " (set TRIREME_PYTHON)";
  }
  return peer;
}

int run_command(const std::vector<std::string>& command, LastWords words) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const bool quiet = words == LastWords::kNo;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    if (quiet) {
      setpgid(0, 0);  // Ctrl-C ends it with this process
      const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
      dup2(null, STDIN_FILENO);  // from there it may not read a terminal
    }
    prctl(PR_SET_PDEATHSIG, quiet ? SIGKILL : SIGTERM);
    if (getppid() == parent) {
      execvp(arguments[0], arguments.data());
    }
    _exit(127);
  }
  if (pid < 0) {
    return 127;
  }
  int status = 0;
  const Deadline deadline(kLongest);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      kill(pid, SIGKILL);  // its ranks, if it has any, end with it
    }
    std::this_thread::sleep_for(kMoment);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace trireme::bench
