// trireme-worker: what `trireme train` starts as ranks, and `trireme sample` becomes. A program of
// its own, because it needs LibTorch.

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"
#include "worker.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 2 && words[0] == "train") {
      return trireme::worker::train_in(words[1]);
    }
    if (!words.empty() && words[0] == "sample") {
      return trireme::worker::sample({words.begin() + 1, words.end()});
    }
    std::fprintf(stderr, "trireme-worker: started by \"trireme train\" and \"trireme sample\"\n");
    return trireme::kExitUsage;
  } catch (const trireme::ConfigError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  }
}
