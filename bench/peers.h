#pragma once

#include <string>
#include <vector>

namespace trireme::bench {

class TestBed;

// What Trireme is called among the systems that take turns.
inline constexpr const char* kOurName = "trireme";

// Another system that is measured beside Trireme: a command that writes its samples to a file.
struct Peer {
  std::string name;     // "gloo", "mpi"
  std::string missing;  // why it cannot be measured here; empty where it can
  std::vector<std::string> command;
  std::vector<std::vector<std::string>> on_machines{};  // on a test bed: all at the same time
};

// Gloo through PyTorch, and Open MPI; `cases` are the operations and the sizes that they measure,
// each as a list with commas, and `output` is where they write.
std::vector<Peer> collective_peers(int ranks,
                                   const std::vector<std::string>& cases,
                                   const std::string& output);
// The same over the interfaces (default: eth0) of a test bed, `ranks` on each machine, and between
// two ranks what plain sockets take for the bytes alone. `meeting` is a file that is not there yet.
std::vector<Peer> collective_peers_on(const TestBed& bed,
                                      int ranks,
                                      const std::string& interfaces,
                                      const std::vector<std::string>& cases,
                                      const std::string& meeting,
                                      const std::string& output);

// One of the systems of `trireme bench step`, "torch-ddp" or "deepspeed-3". DeepSpeed is installed
// when it is first asked for, into a folder of the build.
Peer step_peer(const std::string& name,
               int ranks,
               int setting,
               const std::string& torch_version,
               const std::string& output);
// The same on a test bed, for PyTorch's.
Peer step_peer_on(const TestBed& bed,
                  const std::string& name,
                  int ranks,
                  int setting,
                  const std::string& meeting,
                  const std::string& output);

// "torch-eager" or "torch-compile" on a GPU, in a setting of bench/gpu_steps.cc.
Peer gpu_step_peer(const std::string& name,
                   const std::string& setting,
                   int steps,
                   const std::string& output);

// PyTorch repeating a run of `trireme train`, from its folder; `layout` of images is "plain" or
// "channels_last".
Peer train_peer_command(const std::string& run,
                        const std::string& output,
                        const std::string& layout);

// PyTorch's checkpoints: "torch" or "dcp". `state` lists the tensors, `folder` is on the disk.
Peer checkpoint_peer(const std::string& name,
                     int ranks,
                     const std::string& state,
                     const std::string& folder,
                     const std::string& output);

// PyTorch DDP under torchrun, which starts it again so often; it saves every so many steps, and
// writes to `folder` what it does.
Peer elastic_peer(int ranks, int restarts, int setting, int every, const std::string& folder);

// Runs a command with this process's output; returns its exit code, or 128 + the number of the
// signal that ended it. One that has not ended after half an hour is killed. It does not outlive
// this process.
enum class LastWords { kYes, kNo };  // whether it may say something when both are interrupted
int run_command(const std::vector<std::string>& command, LastWords words = LastWords::kYes);

}  // namespace trireme::bench
