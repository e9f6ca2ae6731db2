// trireme-worker: what `trireme train` starts as ranks, and `trireme predict`, `trireme sample` and
// `trireme ckpt` become. A program of its own, because it needs LibTorch.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <unistd.h>

#include "sibling.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/partial_file.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "worker.h"

namespace {

// Runs after everything that registers itself later (a world that is left, MPI's end), and before
// LibTorch takes its tables of operators apart, which costs every rank 0.2 s and frees nothing that
// the end of the process does not.
void leave(int status, void* /*nothing*/) {
  std::fflush(nullptr);
  _exit(status);
}

// It is trireme that decides what these words mean: one of another version may mean something else.
// Of several ranks, one says so.
bool belongs_together(std::vector<std::string>& words) {
  const std::string mark = trireme::tools::kWorkerFor;
  const bool told = !words.empty() && words[0].starts_with(mark);
  const std::string version = told ? words[0].substr(mark.size()) : "";
  if (told) {
    words.erase(words.begin());
  }
  const bool is_question = words.size() == 1 && (words[0] == "gpus" || words[0] == "precisions");
  if (version == TRIREME_VERSION || words.empty() || is_question) {
    return true;
  }
  if (trireme::env_string(trireme::kEnvRank).value_or("0") == "0") {
    std::fprintf(stderr,
                 "trireme: expected trireme-worker and trireme of the same version, found the "
                 "worker %s, started by %s: build or install both anew\n",
                 TRIREME_VERSION,
                 told ? ("trireme " + version).c_str() : "a trireme that does not say its version");
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
#ifndef __SANITIZE_ADDRESS__  // which looks for leaks after that
  on_exit(leave, nullptr);
#endif
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!belongs_together(words)) {
    return trireme::kExitUsage;
  }
  if (!words.empty() && words[0] == "train") {
    std::signal(SIGPIPE, SIG_IGN);  // `trireme train | head` is no reason to lose a training
  } else {
    trireme::remove_partial_files_at_signals();
  }
  try {
    if (!words.empty() && words.size() <= 2 && words[0] == "train") {
      return trireme::worker::train_as_rank(words.size() == 2 ? words[1] : "");
    }
    if (!words.empty() && words[0] == "predict") {
      return trireme::worker::predict({words.begin() + 1, words.end()});
    }
    if (!words.empty() && words[0] == "sample") {
      return trireme::worker::sample({words.begin() + 1, words.end()});
    }
    if (words.size() == 1 && words[0] == "precisions") {
      return trireme::worker::measure_precisions();
    }
    if (words.size() == 1 && words[0] == "gpus") {
      return trireme::worker::print_gpus();
    }
    if (!words.empty() && words[0] == "export-archive") {
      return trireme::worker::export_archive({words.begin() + 1, words.end()});
    }
    if (!words.empty() && words[0] == "import-archive") {
      return trireme::worker::import_archive({words.begin() + 1, words.end()});
    }
    std::fprintf(
        stderr,
        "trireme-worker: started by \"trireme train\", \"trireme predict\", \"trireme sample\" and "
        "\"trireme ckpt\"\n");
    return trireme::kExitUsage;
  } catch (const trireme::ConfigError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitUsage;
  } catch (const trireme::CheckpointError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  } catch (const trireme::DataError& error) {  // as wrong to name as a file that is not there
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  }
}
